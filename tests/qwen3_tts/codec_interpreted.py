"""The codec's kernels in Triton's interpreter: prints how far they are from the golden samples, as JSON.

    TRITON_INTERPRET=1 python codec_interpreted.py

Runs in a process of its own, because Triton decides at import whether to interpret.
"""

from __future__ import annotations

import json

import torch
from codec_small import codes, decode, decoder, golden
from torch import Tensor

from duplex.adapters.qwen3_tts import codec_triton

torch.set_num_threads(1)
NAME = "kernels"
# the interpreter takes its time for every block: few, and none that is full
codec_triton.TILES = (codec_triton.Tile(128, 128, 32, 4, 2),)  # type: ignore[misc]


def gap(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max())


def main() -> None:
    codec = decoder(NAME, plain=False, slots=3, frames=(1, 2, 6), max_batch=3)
    assert codec.kernels
    wanted = golden()[f"decoder.{NAME}"]
    frames = codes(0, 20)
    found = {"one slot": gap(decode(codec, 1, frames[:9], (1, 6, 2)), wanted[: 9 * codec.frame_samples])}

    # three slots at different places of their streams, one of which has heard its first frames without sound
    other = codes(1, 20)
    plain = decoder(NAME, slots=2)
    others = decode(plain, 0, other)
    per_frame = codec.frame_samples
    saved = codec.save(1)
    codec.reset(1)
    codec.prime(0, frames[:5])
    decode(codec, 2, other[:3], (2, 1))
    ring = torch.zeros(4, 16, 16, dtype=torch.int32)
    for slot, source in enumerate((frames[5:], frames, other)):
        ring[slot, :15] = source[:15].int()
    ids = torch.tensor([0, 1, 2])
    # one pass over all of them; `decode` takes a CPU's slots one by one
    batch = torch.cat([codec._decode_next(ids, size, ring) for size in (6, 2)], dim=1)
    for row, (source, start) in enumerate(((wanted, 5), (wanted, 0), (others, 3))):
        found[f"row {row} of a batch"] = gap(batch[row], source[start * per_frame :][: batch.shape[1]])
    assert codec.state.position.tolist() == [13, 8, 11, 0]
    assert codec.state.frame.tolist() == [8, 8, 11, 0]
    found["a plain slot after kernels"] = gap(go_on(saved, frames[9:]), wanted[9 * per_frame :])
    print(json.dumps(found))


def go_on(state: object, frames: Tensor) -> Tensor:
    """Both arithmetics keep the same state."""
    plain = decoder(NAME, slots=1)
    plain.load(0, state)  # type: ignore[arg-type]
    return decode(plain, 0, frames, (1, 3))


if __name__ == "__main__":
    main()
