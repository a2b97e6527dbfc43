"""A first request of each kind, so that nothing is compiled or set up when a client waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from duplex.adapters.qwen3_tts.job import EncodeReference, Job, Reference

if TYPE_CHECKING:
    from duplex.adapters.qwen3_tts.frame_model import QwenFrameModel

_TEXT: Final = "One, two."
_RECORDING_S: Final = 1.0


def warm_up(model: QwenFrameModel) -> None:
    """Speak on slot 0, twice with each kind of voice: the second time with what the first one left."""
    reference = _reference(model)
    jobs = [Job(text=_TEXT, ended=True, whole=whole, max_frames=4) for whole in (False, True)]
    if reference is not None:
        jobs = [msgspec.structs.replace(job, reference=reference) for job in jobs]
    for job in (*jobs, *jobs):
        _speak(model, job)


def _reference(model: QwenFrameModel) -> Reference | None:
    """Noise, encoded, where the model clones voices."""
    if not model.clones:
        return None
    rate = model.info.sample_rate
    noise = 0.1 * np.random.default_rng(0).standard_normal(int(_RECORDING_S * rate))
    asked = EncodeReference(samples=noise.astype("<f4").tobytes(), sample_rate=rate, codes=True)
    answer = model.call("encode_reference", msgspec.msgpack.encode(asked))
    return msgspec.structs.replace(msgspec.msgpack.decode(answer, type=Reference), text="Noise.")


def _speak(model: QwenFrameModel, job: Job) -> None:
    view = model.begin(0, msgspec.msgpack.encode(job))
    while rows := min(view.prompt_rows, model.info.prefill_rows):
        model.prefill([(0, rows)])
    model.launch_frame([0]).result()
    model.launch_decode([0], 1).result()
    model.free(0)
