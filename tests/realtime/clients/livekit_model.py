"""`livekit-plugins-openai`: a spoken turn, an interruption. Arguments: ws address, the phrases' folder."""

from __future__ import annotations

import asyncio
import sys
import wave
from pathlib import Path

from livekit import rtc
from livekit.agents import llm
from livekit.agents.utils import http_context
from livekit.plugins import openai


async def main() -> None:
    url, folder = sys.argv[1], Path(sys.argv[2])
    http_context._new_session_ctx()
    model = openai.realtime.RealtimeModel(base_url=f"{url.replace('ws://', 'http://')}/v1", api_key="any")
    session = model.session()
    seen: list[str] = []
    errors: list[str] = []
    said: list[str] = []
    sounding = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    cut = asyncio.Event()
    over: asyncio.Queue[None] = asyncio.Queue()

    async def listen(event: llm.GenerationCreatedEvent) -> None:
        async for message in event.message_stream:
            words = ""

            async def texts(message: llm.MessageGeneration = message) -> None:
                nonlocal words
                async for text in message.text_stream:
                    words += str(text)

            reading = asyncio.create_task(texts())
            frames = 0
            async for _ in message.audio_stream:
                frames += 1
                sounding.set()
            await reading
            seen.append(f"message({frames} frames)")
            said.append(words[:100])
        seen.append("generation over")
        over.put_nowait(None)

    def on_generation(event: llm.GenerationCreatedEvent) -> None:
        seen.append("generation_created")
        tasks.append(asyncio.create_task(listen(event)))

    def on_speech(_: object) -> None:
        seen.append("input_speech_started")
        if sounding.is_set():
            cut.set()  # the gateway has stopped the answer itself

    session.on("generation_created", on_generation)
    session.on("input_speech_started", on_speech)
    transcribed = "input_audio_transcription_completed"
    session.on(transcribed, lambda event: said.append(f"user: {event.transcript} {event.is_final}"))
    session.on("error", lambda e: errors.append(str(e)))

    async def speak(name: str) -> None:
        with wave.open(str(folder / f"{name}.wav")) as file:
            while data := file.readframes(960):
                session.push_audio(rtc.AudioFrame(data, 24000, 1, len(data) // 2))
                await asyncio.sleep(0.04)

    async with asyncio.timeout(90):
        await speak("count")
        await sounding.wait()
        await speak("stop")
        await cut.wait()
        await over.get()
        await over.get()
        await session.generate_reply(instructions="Say good bye.")
        await over.get()
    print(" ".join(seen))
    print("\n".join(said))
    print("errors:", errors)
    await session.aclose()
    await http_context._close_http_ctx()
    words = " ".join(said)
    complete = "Today is" in words and "user: Count" in words and seen.count("generation over") == 3
    sys.exit(0 if complete and not errors else 1)


asyncio.run(main())
