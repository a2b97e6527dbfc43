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
    async with await runner.run(model_config=model) as session:

        async def speak(name: str) -> None:
            with wave.open(str(folder / f"{name}.wav")) as file:
                while data := file.readframes(960):
                    await session.send_audio(data)
                    await asyncio.sleep(0.04)

        speaking = asyncio.create_task(speak("count"))
        interrupted = False
        async with asyncio.timeout(90):
            async for event in session:
                if not seen or seen[-1] != event.type:
                    seen.append(event.type)
                if event.type == "error":
                    sys.exit(f"error: {event.error}")
                if event.type == "audio" and not interrupted and speaking.done():
                    interrupted = True
                    speaking = asyncio.create_task(speak("stop"))
                if event.type == "audio_end" and interrupted and "audio_interrupted" in seen:
                    break
        texts = [str(getattr(item, "content", ""))[:160] for item in session._history]
    print(" ".join(seen))
    print("\n".join(texts))


asyncio.run(main())
