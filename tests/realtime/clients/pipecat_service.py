"""`pipecat-ai`: a spoken turn, an interruption. Arguments: the gateway's ws address, the phrases' folder."""

from __future__ import annotations

import asyncio
import sys
import wave
from pathlib import Path

from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    LLMFullResponseEndFrame,
    LLMRunFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService


class Watch(FrameProcessor):
    """Remembers what passes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.said = ""
        self.audio = asyncio.Event()
        self.ended: asyncio.Queue[None] = asyncio.Queue()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        name = type(frame).__name__
        if not self.seen or self.seen[-1] != name:
            self.seen.append(name)
        if isinstance(frame, TTSTextFrame):
            self.said += frame.text
        if isinstance(frame, TTSAudioRawFrame):
            self.audio.set()
        if isinstance(frame, LLMFullResponseEndFrame):
            self.ended.put_nowait(None)
        await self.push_frame(frame, direction)


async def main() -> None:
    url, folder = sys.argv[1], Path(sys.argv[2])
    errors: list[str] = []
    properties = events.SessionProperties(
        audio=events.AudioConfiguration(
            input=events.AudioInput(
                transcription=events.InputAudioTranscription(), turn_detection=events.TurnDetection()
            )
        )
    )
    service = OpenAIRealtimeLLMService(
        api_key="any",
        base_url=f"{url}/v1/realtime",
        settings=OpenAIRealtimeLLMService.Settings(session_properties=properties),
    )
    context = LLMContext([{"role": "user", "content": "Repeat after me: hello there."}])
    pair = LLMContextAggregatorPair(context)
    watch = Watch()
    pipeline = Pipeline([pair.user(), service, watch, pair.assistant()])
    task = PipelineTask(
        pipeline, params=PipelineParams(audio_in_sample_rate=24000, audio_out_sample_rate=24000)
    )

    @service.event_handler("on_error")
    async def on_error(_: object, error: ErrorFrame) -> None:
        errors.append(str(error.error))

    async def speak(name: str) -> None:
        with wave.open(str(folder / f"{name}.wav")) as file:
            while data := file.readframes(960):
                await task.queue_frame(InputAudioRawFrame(audio=data, sample_rate=24000, num_channels=1))
                await asyncio.sleep(0.04)

    async def drive() -> None:
        await task.queue_frame(LLMRunFrame())
        await watch.ended.get()
        await asyncio.sleep(2)  # it is played: what is said into it would be an interruption
        watch.audio.clear()
        await speak("count")
        await watch.audio.wait()
        await speak("stop")
        while "Today" not in watch.said:
            await watch.ended.get()
        await task.queue_frame(EndFrame())

    runner = PipelineRunner(handle_sigint=False)
    async with asyncio.timeout(100):
        await asyncio.gather(runner.run(task), drive())
    print(" ".join(watch.seen))
    print(watch.said[:400])
    print("errors:", errors)
    cut = "InterruptionFrame" in watch.seen and "One." in watch.said and "Fifty" not in watch.said
    sys.exit(0 if cut and not errors else 1)


asyncio.run(main())
