"""The `FrameModel` of Qwen3-TTS: requests in slots, their prompts and texts, frames and their audio.

Seconds of loading aside, nothing here waits for the device: what the host must know of a slot it keeps itself
(`slot.SlotRun`), and a frame's or a decode's outcome is collected by whoever holds its `Pending`.

A voice's first prompt rows are the same for every text. Once they were computed they are kept, as the
talker's keys and values and, for in-context cloning, as the codec's state after the reference; a request with
a known voice begins after them, and its frames are the same, bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from duplex.adapters.engine.model import Finish, FrameResult, ModelInfo, Pending
from duplex.adapters.qwen3_tts.cloned import ClonedVoice, read_reference
from duplex.adapters.qwen3_tts.compiling import compile_ahead
from duplex.adapters.qwen3_tts.config import TtsConfig
from duplex.adapters.qwen3_tts.core import Core, FrameTicket
from duplex.adapters.qwen3_tts.device import on_device
from duplex.adapters.qwen3_tts.job import Job
from duplex.adapters.qwen3_tts.memo import Memo
from duplex.adapters.qwen3_tts.prompt import ChatIds, Prompt, Voice
from duplex.adapters.qwen3_tts.recordings import Recordings
from duplex.adapters.qwen3_tts.rows import RowMaker
from duplex.adapters.qwen3_tts.slot import SlotRun
from duplex.adapters.qwen3_tts.sound import Sound
from duplex.adapters.qwen3_tts.text import TextTokenizer
from duplex.adapters.qwen3_tts.warm import warm_up
from duplex.core.errors import DuplexError, ErrorCode


@dataclass(frozen=True, slots=True)
class _FramePending:
    """A launched frame: of each slot, whose frame it is and its number."""

    ticket: FrameTicket
    runs: tuple[tuple[SlotRun, int], ...]
    end: int

    def done(self) -> bool:
        return self.ticket.done()

    def result(self) -> FrameResult:
        codes, _ = self.ticket.result()
        outcomes = [self._outcome(*run, int(code)) for run, code in zip(self.runs, codes, strict=True)]
        return FrameResult(
            audible=tuple([audible for audible, _ in outcomes]),
            finish=tuple([finish for _, finish in outcomes]),
        )

    def _outcome(self, run: SlotRun, frame: int, code: int) -> tuple[bool, Finish | None]:
        if code == self.end:
            return False, "stop"
        return True, "length" if frame + 1 >= run.limit else None


class QwenFrameModel:
    """A loaded checkpoint. See `FrameModel`; `duplex.adapters.qwen3_tts.model.load` makes one.

    `memo` keeps voices' prompts, in the bytes that it is given.
    """

    def __init__(
        self,
        info: ModelInfo,
        config: TtsConfig,
        *,
        core: Core,
        sound: Sound,
        tokenizer: TextTokenizer,
        chat: ChatIds,
        memo: Memo[Any],
        recordings: Recordings | None,
    ) -> None:
        self.info = info
        self._config = config
        self._core = core
        self._sound = sound
        self._tokenizer = tokenizer
        self._chat = chat
        self._memo = memo
        self._recordings = recordings
        self._rows = RowMaker(core)
        self._runs: dict[int, SlotRun] = {}
        self._launches = 0
        if core.device.type == "cuda":
            self.memory_bytes = self._memory_bytes

    @property
    def clones(self) -> bool:
        """It encodes recordings of voices to clone."""
        return self._recordings is not None

    # --- the step thread ----------------------------------------------------------------------------

    def warm_up(self) -> None:
        """See `FrameModel.warm_up`."""
        took: dict[str, float] = {}

        def step(name: str, work: Callable[[], None]) -> None:
            begin = time.perf_counter()
            work()
            took[name] = time.perf_counter() - begin

        with on_device(self._core.device):
            if self._core.device.type == "cuda":
                step("compile", lambda: compile_ahead(self._core.rehearse, self._sound.rehearse))
            step("frames", self._core.warm_up)
        step("codec", self._sound.warm_up)
        step("requests", lambda: warm_up(self))
        self._memo.clear()
        self.info.detail["warm_up"] = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items())

    def begin(self, slot: int, job: bytes) -> SlotRun:
        """See `FrameModel.begin`.

        Raises:
            DuplexError: `INVALID_VALUE` or `VOICE_NOT_FOUND`: the checkpoint cannot do the job.
        """
        if slot in self._runs or not 0 <= slot < self.info.slots:
            raise ValueError(f"slot {slot} is not free")
        asked = _read_job(job)
        run = self._lay_out(slot, asked)
        with on_device(self._core.device):
            self._core.reset(slot, seed=asked.seed, sampling=asked.sampling)
            if (known := self._memo.get(_prefix_key(run))) is not None:
                self._core.copy_prefix(slot, known)
                run.add_prefilled(run.prompt.prefix)
        cloned = run.voice
        if cloned is not None and len(cloned.codes):
            self._sound.begin(slot, cloned.codes, cloned.code_key)
        else:
            self._sound.begin(slot)
        self._runs[slot] = run
        return run

    def _lay_out(self, slot: int, job: Job) -> SlotRun:
        """The bookkeeping of a new request. Touches nothing."""
        cloned = self._cloned(job)
        encode = self._tokenizer.encode
        voice = Voice(
            language=job.language,
            speaker=job.speaker,
            instructions=tuple(encode(job.instructions)) if job.instructions.strip() else (),
            embedding=cloned is not None,
            reference_text=tuple(encode(cloned.text)) if cloned is not None else (),
            reference_frames=len(cloned.codes) if cloned is not None else 0,
        )
        prompt = Prompt(self._config, self._chat, voice, whole=job.whole)
        encoder = self._tokenizer.encoder()
        ids = encoder.feed(job.text)
        if job.ended:
            ids += encoder.end()
        prompt.add(ids, ended=job.ended)
        run = SlotRun(
            slot,
            prompt,
            encoder,
            cloned,
            kind=self._config.tts_model_type,
            asked=job.max_frames,
            positions=self._core.positions,
        )
        if run.room < 1:
            raise _bad(
                f"the prompt takes {prompt.size} of a request's {self._core.positions} positions, frames"
                " included: text, instructions or the reference are too long",
                "input",
            )
        return run

    def _cloned(self, job: Job) -> ClonedVoice | None:
        if job.reference is None:
            return None
        if self._config.tts_model_type != "base":
            raise _bad(f"a {self._config.tts_model_type} checkpoint clones no voice", "ref_audio")
        return read_reference(job.reference, self._config)

    def add_text(self, slot: int, text: str, *, ended: bool) -> None:
        """See `FrameModel.add_text`.

        Raises:
            DuplexError: `INVALID_VALUE`: the text had ended.
        """
        run = self._runs[slot]
        if run.prompt.ended:
            raise _bad("the text of the request has ended", "input")
        run.feed(text, ended=ended)

    def prefill(self, work: Sequence[tuple[int, int]]) -> None:
        """See `FrameModel.prefill`."""
        pieces = [(self._runs[slot], rows) for slot, rows in work]
        fresh = [run for run, rows in pieces if run.prefilled < run.prompt.prefix <= run.prefilled + rows]
        with on_device(self._core.device):
            self._rows.prefill(pieces)
            for run in fresh:
                key = _prefix_key(run)
                if self._memo.get(key) is None:
                    prefix = self._core.save_prefix(run.slot, run.prompt.prefix)
                    self._memo.put(key, prefix, prefix.bytes)

    def launch_frame(self, slots: Sequence[int]) -> Pending[FrameResult]:
        """See `FrameModel.launch_frame`."""
        runs = [self._runs[slot] for slot in slots]
        with on_device(self._core.device):
            self._rows.send_text(runs)
            ticket = self._core.launch_frame(slots)
        self._launches += 1
        pending = _FramePending(
            ticket,
            tuple([(run, run.launched) for run in runs]),
            self._config.talker_config.codec_eos_token_id,
        )
        for run in runs:
            run.launched += 1
            run.tickets.append((self._launches, ticket))
        return pending

    def launch_decode(self, slots: Sequence[int], frames: int) -> Pending[NDArray[np.float32]]:
        """See `FrameModel.launch_decode`."""
        runs = [self._runs[slot] for slot in slots]
        if any(len(run.tickets) < frames for run in runs):
            raise ValueError(f"not all slots have {frames} frames to decode")
        _, after = max((run.tickets[frames - 1] for run in runs), key=lambda launched: launched[0])
        pending: Pending[NDArray[np.float32]] = self._sound.launch(
            slots, [run.decoded for run in runs], frames, after
        )
        for run in runs:
            run.decoded += frames
            for _ in range(frames):
                run.tickets.popleft()
        return pending

    def free(self, slot: int) -> None:
        """See `FrameModel.free`. Later work in the slot is queued behind what is in flight of it."""
        self._runs.pop(slot, None)

    # --- any thread ---------------------------------------------------------------------------------

    def call(self, name: str, payload: bytes) -> bytes:
        """See `FrameModel.call`: "encode_reference", an `EncodeReference` answered by a `Reference`.

        Raises:
            DuplexError: `INVALID_VALUE`: another name, or not of a Base checkpoint; what `Recordings` raises.
        """
        if name != "encode_reference":
            raise _bad(f"the model knows no call {name!r}", None)
        if self._recordings is None:
            raise _bad(f"a {self._config.tts_model_type} checkpoint clones no voice", "ref_audio")
        return msgspec.msgpack.encode(self._recordings.encode(payload))

    def _memory_bytes(self) -> int:
        """Device memory that torch has taken."""
        return sum(torch.cuda.memory_reserved(device) for device in range(torch.cuda.device_count()))


def _prefix_key(run: SlotRun) -> Hashable:
    """What the first rows of a prompt are made of."""
    rows = tuple(run.prompt.rows[: run.prompt.prefix])
    return ("talker", rows, run.voice.key if run.voice is not None else None)


def _read_job(job: bytes) -> Job:
    try:
        asked = msgspec.msgpack.decode(job, type=Job)
    except msgspec.DecodeError as error:
        raise _bad(f"no job: {error}", None) from error
    if asked.whole and not asked.ended:
        raise _bad("the whole layout needs all of the text", "input")
    if asked.max_frames is not None and asked.max_frames < 1:
        raise _bad(f"max_frames is {asked.max_frames}, the least is 1", "max_new_tokens")
    return asked


def _bad(message: str, param: str | None) -> DuplexError:
    return DuplexError(ErrorCode.INVALID_VALUE, message, param=param)
