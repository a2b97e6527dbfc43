"""The speech face of Qwen3-TTS: a text, as it arrives, into utterances for the engine; their audio back."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Literal, TypeAlias

import msgspec

from duplex.adapters.qwen3_tts.job import Job, Reference, Sampling
from duplex.adapters.qwen3_tts.port import Chunk, Engine, Stream
from duplex.adapters.qwen3_tts.references import References
from duplex.adapters.qwen3_tts.rules import GROUPS, Rules
from duplex.adapters.qwen3_tts.utterances import Piece, Utterances, room
from duplex.adapters.speech import SpeechChunk, SpeechRequest, SpeechVoice

TextLayout: TypeAlias = Literal["auto", "whole", "streaming"]


class QwenSpeech:
    """A `SpeechFace`.

    Args:
        engine, rules: of the checkpoint.
        positions: prompt rows and frames that one utterance can have.
        layout: see `TtsOptions.text_layout`.
        sampling: how codes are drawn; None: as the published checkpoints say.
        sample_rate, frame_samples: the codec's, Hz and samples.
    """

    def __init__(
        self,
        engine: Engine,
        rules: Rules,
        *,
        positions: int,
        sample_rate: int = 24000,
        frame_samples: int = 1920,
        layout: TextLayout = "auto",
        sampling: Sampling | None = None,
    ) -> None:
        self.sample_rate = sample_rate
        self.frame_samples = frame_samples
        self._engine = engine
        self._rules = rules
        self._positions = positions
        self._layout = layout
        self._sampling = sampling or Sampling()
        self.references = References(engine.call)

    @property
    def voices(self) -> tuple[SpeechVoice, ...]:
        return self._rules.voices

    def validate(self, request: SpeechRequest) -> SpeechRequest:
        """See `SpeechFace.validate`."""
        return self._rules.check(request)

    async def synthesise(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncGenerator[SpeechChunk, None]:
        """See `SpeechFace.synthesise`. `request` is one that `validate` gave.

        Text without a letter or digit gives nothing. Long texts are several utterances, one after the other.
        """
        reference = await self.references.of(request)
        utterances = Utterances(text, self._room(request, reference))
        job = self._job(request, reference)
        frames_left = request.max_new_tokens
        first_frames = request.initial_codec_chunk_frames or 1
        goes_on = False
        try:
            while (begun := await utterances.begin(whole=self._waits)) is not None:
                job = msgspec.structs.replace(
                    job,
                    text=begun.text,
                    ended=begun.last,
                    whole=begun.last and self._whole,
                    max_frames=frames_left,
                )
                speaking = _Speaking(
                    self._engine, job, begun, utterances, first_frames=first_frames, goes_on=goes_on
                )
                async with aclosing(speaking.chunks()) as chunks:
                    async for chunk in chunks:
                        if frames_left is not None:
                            frames_left -= len(chunk.samples) // self.frame_samples
                        # another utterance may follow: then "stop" is not the end
                        last = chunk.finish == "length" or utterances.done
                        yield SpeechChunk(
                            samples=chunk.samples,
                            sample_rate=self.sample_rate,
                            finish_reason=chunk.finish if last else None,
                        )
                # what follows the end of the model's speech, when it came before the end of the text, is lost
                if not speaking.text_ended or (frames_left is not None and frames_left <= 0):
                    return
                first_frames, goes_on = 1, True
        finally:
            await utterances.close()

    @property
    def _whole(self) -> bool:
        """A text that is there at once goes in before the first frame: the reference's choice for all but
        cloned voices."""
        return self._layout == "whole" or (self._layout == "auto" and self._rules.kind != "base")

    @property
    def _waits(self) -> bool:
        return self._layout == "whole"

    def _room(self, request: SpeechRequest, reference: Reference | None) -> float:
        return room(
            self._positions,
            instructions=request.instructions,
            reference_text=reference.text if reference is not None else "",
            reference_frames=len(reference.codes) // (2 * GROUPS) if reference is not None else 0,
        )

    def _job(self, request: SpeechRequest, reference: Reference | None) -> Job:
        """Without its text. All utterances of a request have its seed: a designed voice stays more alike."""
        seed = request.seed if request.seed is not None else secrets.randbits(63)
        return Job(
            text="",
            ended=False,
            whole=False,
            language=self._rules.language(request),
            speaker=request.voice if self._rules.kind == "custom_voice" else None,
            instructions=request.instructions,
            reference=reference,
            seed=seed % 2**64,  # seeds below zero are seeds too
            sampling=self._sampling,
        )


class _Speaking:
    """One utterance. `text_ended`: the model had all of its text."""

    def __init__(
        self,
        engine: Engine,
        job: Job,
        begun: Piece,
        utterances: Utterances,
        *,
        first_frames: int,
        goes_on: bool,
    ) -> None:
        self.text_ended = begun.last
        self._engine = engine
        self._job = msgspec.msgpack.encode(job)
        self._utterances = utterances
        self._first_frames = first_frames
        self._goes_on = goes_on

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Its audio, while its text is fed."""
        async with self._engine.request(
            self._job, first_frames=self._first_frames, goes_on=self._goes_on
        ) as stream:
            feeding = None if self.text_ended else asyncio.ensure_future(self._feed(stream))
            audio = aiter(stream)
            try:
                while (chunk := await _next(audio, feeding)) is not None:
                    yield chunk
                    if chunk.finish is not None:
                        return
            finally:
                if feeding is not None:
                    feeding.cancel()
                    await asyncio.gather(feeding, return_exceptions=True)

    async def _feed(self, stream: Stream) -> None:
        while not self.text_ended:
            piece = await self._utterances.more()
            stream.send_text(piece.text, ended=piece.last)
            self.text_ended = piece.last


async def _next(audio: AsyncIterator[Chunk], feeding: asyncio.Future[None] | None) -> Chunk | None:
    """The next chunk. Raises what `feeding` failed with: no audio comes of text that does not."""
    if feeding is None or feeding.done():
        if feeding is not None:
            feeding.result()
        return await anext(audio, None)
    coming = asyncio.ensure_future(anext(audio, None))
    try:
        both: set[asyncio.Future[Any]] = {coming, feeding}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            feeding.result()
        return await coming
    finally:
        if not coming.done():
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
