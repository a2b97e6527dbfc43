"""The golden requests as our parts take them: weights, prompt rows, and the frame loop around a core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from golden_cases import CASES, GOLDEN, Case
from numpy.typing import NDArray
from torch import Tensor

from duplex.adapters.qwen2 import qwen2_tokenizer
from duplex.adapters.qwen3_tts.config import TtsConfig
from duplex.adapters.qwen3_tts.core import Core
from duplex.adapters.qwen3_tts.job import Sampling
from duplex.adapters.qwen3_tts.prompt import SPEAKER, ChatIds, Prompt, ReferenceFrame, Row, Voice
from duplex.adapters.qwen3_tts.tiny import tiny_config, tiny_weights
from duplex.adapters.qwen3_tts.tiny_text import token_id, write_tokenizer

GREEDY = Sampling(temperature=0.0, predictor_temperature=0.0)
BY_NAME = {case.name: case for case in CASES}
CHAT = ChatIds(user=token_id("user"), newline=token_id("Ċ"))


@cache
def golden(name: str) -> dict[str, NDArray[Any]]:
    """A case's arrays: `make_talker.py` says which."""
    with np.load(GOLDEN / "talker.npz") as file:
        return {key.partition("/")[2]: file[key] for key in file.files if key.partition("/")[0] == name}


@cache
def weights_of(case: Case) -> tuple[TtsConfig, dict[str, Tensor]]:
    config = tiny_config(case.model_type, case.size)
    weights = tiny_weights(config, case.seed, end_gain=case.end_gain)
    return config, {name: torch.from_numpy(array) for name, array in weights.items()}


def core_of(case: Case, *, slots: int = 2, rows: int = 256, device: str = "cpu", **options: Any) -> Core:
    """A float32 core of a case's checkpoint, warm."""
    config, weights = weights_of(case)
    core = Core(
        config,
        weights,
        device=device,
        dtype=torch.float32,
        slots=slots,
        positions=512,
        max_batch=min(slots, 8),
        prefill_rows=rows,
        **options,
    )
    core.warm_up()
    return core


@cache
def text_ids(text: str) -> tuple[int, ...]:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        tokenizer = qwen2_tokenizer(Path(folder) / "vocab.json", Path(folder) / "merges.txt")
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """A prompt in embeddings: `rows` (n, h); `trailing` (m, h), the row added after each of the first m
    frames."""

    rows: Tensor
    trailing: Tensor
    sampling: Sampling = GREEDY
    seed: int = 0


def request_of(
    case: Case, core: Core, *, sampling: Sampling = GREEDY, seed: int = 0, text: str | None = None
) -> Request:
    """A case's prompt by our own layout, in embeddings by our own core."""
    arrays = golden(case.name)
    voice = Voice(
        language=case.language,
        speaker=case.speaker,
        instructions=text_ids(case.instructions) if case.instructions else (),
        embedding=case.reference is not None,
        reference_text=text_ids(case.reference_text) if case.reference == "context" else (),
        reference_frames=case.reference_frames,
    )
    prompt = Prompt(core.config, CHAT, voice, whole=case.whole)
    prompt.add(text_ids(case.text if text is None else text), ended=True)
    assert prompt.complete
    return Request(
        rows=embedded(prompt.rows, core, arrays.get("embedding"), arrays.get("reference_codes")),
        trailing=core.text_rows(torch.tensor(prompt.trailing, dtype=torch.int64)),
        sampling=sampling,
        seed=seed,
    )


def embedded(
    rows: Sequence[Row], core: Core, embedding: NDArray[Any] | None, codes: NDArray[Any] | None
) -> Tensor:
    """The rows of a prompt (n, h): each the sum of its parts."""
    total = torch.zeros(len(rows), core.config.talker_config.hidden_size, device=core.device)
    for index, row in enumerate(rows):
        if row.text is not None:
            total[index] += core.text_rows(torch.tensor([row.text]))[0]
        if row.codec == SPEAKER:
            assert embedding is not None
            total[index] += torch.from_numpy(embedding).to(core.device)
        elif isinstance(row.codec, ReferenceFrame):
            assert codes is not None
            frame = torch.from_numpy(codes[row.codec.index : row.codec.index + 1].astype(np.int64))
            total[index] += core.code_rows(frame)[0]
        elif row.codec is not None:
            total[index] += core.codec_rows(torch.tensor([row.codec]))[0]
    return total


def begin(core: Core, slot: int, request: Request) -> None:
    """Give a slot to a request, all of whose text is there."""
    core.reset(slot, seed=request.seed, sampling=request.sampling)
    if len(request.trailing):
        cells = core.text_cells(slot, range(len(request.trailing)))
        core.put_text(torch.tensor(cells, device=core.device), request.trailing)
    core.end_text(slot, len(request.trailing))


def prefill(core: Core, work: Sequence[tuple[int, Request, int, int]]) -> None:
    """One prefill of (slot, request, first row, end row) spans."""
    rows = torch.cat([request.rows[first:end] for _, request, first, end in work])
    slots = torch.cat([torch.full((end - first,), slot) for slot, _, first, end in work])
    positions = torch.cat([torch.arange(first, end) for _, _, first, end in work])
    last = torch.cat([torch.arange(first, end) == len(request.rows) - 1 for _, request, first, end in work])
    core.prefill(rows, slots, positions, last)


def hidden(core: Core, slot: int) -> Tensor:
    """The slot's last hidden state (h,), from which the next frame starts."""
    return core.state.hidden[slot].float().cpu().clone()


@dataclass(slots=True)
class Spoken:
    """What a slot made: `codes` (frames, 16), `hidden` (frames, h) before each frame."""

    codes: list[NDArray[np.int32]] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)


def frame(core: Core, slots: Sequence[int], spoken: dict[int, Spoken]) -> None:
    """One frame of each of the slots."""
    for slot in slots:
        spoken.setdefault(slot, Spoken()).hidden.append(hidden(core, slot))
    codes, numbers = core.launch_frame(slots).result()
    for slot, code, number in zip(slots, codes.tolist(), numbers.tolist(), strict=True):
        made = spoken[slot].codes
        assert number == len(made)
        row = core.codes[slot, number % core.frames_kept].cpu().numpy().copy()
        assert row[0] == code
        made.append(row)


def spans(length: int, size: int) -> Iterator[tuple[int, int]]:
    for first in range(0, length, size):
        yield first, min(first + size, length)


def speak(core: Core, request: Request, frames: int, *, slot: int = 0, size: int = 256) -> Spoken:
    """A request alone: prefill in chunks of `size` rows, then frames."""
    begin(core, slot, request)
    for first, end in spans(len(request.rows), size):
        prefill(core, [(slot, request, first, end)])
    spoken: dict[int, Spoken] = {}
    for _ in range(frames):
        frame(core, [slot], spoken)
    return spoken[slot]
