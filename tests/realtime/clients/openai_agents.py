"""`openai-agents`: a spoken turn, an interruption. Arguments: ws address, the phrases' folder."""

from __future__ import annotations

import asyncio
import sys
import wave
from pathlib import Path

from agents.realtime import RealtimeAgent, RealtimeRunner


async def main() -> None:
    url, folder = sys.argv[1], Path(sys.argv[2])
    agent = RealtimeAgent(name="voice", instructions="Be brief.")
    settings = {
        "model_name": "gpt-realtime",
        "voice": "marin",
        "input_audio_transcription": {"model": "whisper-1"},
    }
    runner = RealtimeRunner(agent, config={"model_settings": settings})
    model = {"url": f"{url}/v1/realtime?model=gpt-realtime", "api_key": "any"}
    seen: list[str] = []
    errors: list[str] = []
    said: dict[str, list[str]] = {"user": [], "assistant": []}
    async with await runner.run(model_config=model) as session:

        async def speak(name: str) -> None:
            with wave.open(str(folder / f"{name}.wav")) as file:
                while data := file.readframes(960):
                    await session.send_audio(data)
                    await asyncio.sleep(0.04)

        speaking = asyncio.create_task(speak("count"))
        interrupted = False
        ends = 0
        async with asyncio.timeout(90):
            async for event in session:
                if event.type != "raw_model_event" and seen[-1:] != [event.type]:
                    seen.append(event.type)
                if event.type == "error":
                    errors.append(str(event.error))
                if event.type == "audio" and not interrupted and speaking.done():
                    interrupted = True
                    speaking = asyncio.create_task(speak("stop"))
                ends += event.type == "agent_end"
                if event.type == "history_updated":
                    said = {"user": [], "assistant": []}
                    for item in event.history:
                        if item.type == "message" and item.role in said:
                            said[item.role] += [str(part.transcript) for part in item.content]
                if ends == 2 and len(said["user"]) == len(said["assistant"]) == 2:
                    break
    print(" ".join(seen))
    print(f"user: {said['user']}")
    print(f"assistant: {[text[:100] for text in said['assistant']]}")
    print("errors:", errors)
    heard = "count" in said["user"][0].lower() and "day" in said["user"][1].lower()
    cut = "audio_interrupted" in seen and "Fifty" not in said["assistant"][0]
    sys.exit(0 if heard and cut and not errors else 1)


asyncio.run(main())
