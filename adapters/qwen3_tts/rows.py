"""Rows of the talker's input as numbers: prompts, and the text that is added while audio is made.

What a step needs for all its slots goes to the device in one copy and is looked up at once, so that a request
costs the step thread a few launches, however many texts arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from duplex.adapters.qwen3_tts.core import Core
from duplex.adapters.qwen3_tts.device import send, upload
from duplex.adapters.qwen3_tts.prompt import SPEAKER, ReferenceFrame, Row
from duplex.adapters.qwen3_tts.slot import SlotRun

Piece: TypeAlias = tuple[SlotRun, int]
"""A slot and how many of its next prompt rows."""


class RowMaker:
    """Rows of one core's requests."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def prefill(self, pieces: Sequence[Piece]) -> None:
        """Launch prompt rows and count them as prefilled."""
        rows: list[Row] = []
        slots: list[int] = []
        positions: list[int] = []
        last: list[bool] = []
        voices: list[tuple[SlotRun, int, int]] = []
        for run, count in pieces:
            start, end = run.prefilled, run.prefilled + count
            if run.voice is not None:
                voices.append((run, len(rows), len(rows) + count))
            rows += run.prompt.rows[start:end]
            slots += [run.slot] * count
            positions += range(start, end)
            last += [False] * (count - 1) + [end == run.prompt.size]
        made = self._embed(rows)
        for run, start, end in voices:
            self._add_voice(made, rows, start, end, run)
        self._core.prefill(made, torch.tensor(slots), torch.tensor(positions), torch.tensor(last))
        for run, count in pieces:
            run.add_prefilled(count)

    def _embed(self, rows: Sequence[Row]) -> Tensor:
        """Text embeddings, with those of codec ids added."""
        codec = {index: row.codec for index, row in enumerate(rows) if isinstance(row.codec, int)}
        count, added = len(rows), len(codec)
        ids = upload([*(row.text for row in rows), *codec, *codec.values()], self._core.device)
        made = self._core.text_rows(ids[:count])
        if codec:
            codec_rows = self._core.codec_rows(ids[count + added :])
            made.index_add_(0, ids[count : count + added], codec_rows.to(made.dtype))
        return made

    def _add_voice(self, made: Tensor, rows: Sequence[Row], start: int, end: int, run: SlotRun) -> None:
        """Add what a cloned voice has in rows `start` … `end`."""
        assert run.voice is not None
        device = self._core.device
        frames = []
        for index in range(start, end):
            codec = rows[index].codec
            if isinstance(codec, ReferenceFrame):
                frames.append((index, codec.index))
            elif codec == SPEAKER:
                made[index] += send(torch.from_numpy(run.voice.embedding), device).to(made.dtype)
        if frames:
            first, last = frames[0], frames[-1]
            codes = send(torch.from_numpy(run.voice.codes[first[1] : last[1] + 1]), device)
            code_rows = self._core.code_rows(codes)
            made[first[0] : last[0] + 1] += code_rows.to(made.dtype)

    def send_text(self, runs: Sequence[SlotRun]) -> None:
        """Put the text rows on the device that slots need for their next frame, and what fits after them."""
        core = self._core
        ids: list[int] = []
        cells: list[int] = []
        for run in runs:
            if run.launched < run.send_at:
                continue
            trailing = run.prompt.trailing
            end = min(len(trailing), run.launched + core.text_kept)
            ids += trailing[run.uploaded : end]
            cells += core.text_cells(run.slot, range(run.uploaded, end))
            if run.prompt.ended and not run.end_told:
                core.end_text(run.slot, len(trailing))
            run.sent(end)
        if ids:
            both = upload([*ids, *cells], core.device)
            core.put_text(both[len(ids) :], core.text_rows(both[: len(ids)]))
