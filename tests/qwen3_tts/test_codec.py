"""The codec decoder: the authors' samples, for any split of the frames and any company."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the codec needs torch")

import codec_cases as cases  # noqa: E402
from codec_small import codes, config, decode, decoder, golden, weights  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from duplex.adapters.qwen3_tts.codec import CodecDecoder  # noqa: E402
from duplex.adapters.qwen3_tts.codec_net import frames_of_history  # noqa: E402
from duplex.adapters.qwen3_tts.codec_state import CodecState  # noqa: E402
from duplex.core.errors import DuplexError, ErrorCode  # noqa: E402

CLOSE = 2e-5  # of full scale; the promise is 1e-4


def gap(left: torch.Tensor, right: torch.Tensor) -> float:
    assert left.shape == right.shape
    return float((left - right).abs().max())


@pytest.mark.parametrize("chunk", [1, 2, 8])
@pytest.mark.parametrize("name", ["small", "window"])
def test_frame_by_frame_equals_the_authors_whole_decode(name: str, chunk: int) -> None:
    codec = decoder(name)
    samples = decode(codec, 1, codes(0, cases.FRAMES[name]), (chunk,))
    assert gap(samples, golden()[f"decoder.{name}"]) < CLOSE


def test_weights_may_come_without_their_prefix() -> None:
    bare = {
        key.removeprefix("decoder."): value for key, value in weights("small").items() if "decoder." in key
    }
    codec = CodecDecoder(
        config("small").decoder_config,
        bare,
        device="cpu",
        dtype=torch.float32,
        slots=1,
        frames=(8,),
        max_batch=1,
    )
    samples = codec.decode(torch.tensor([0]), codes(0, 8)[None])[0]
    assert gap(samples, golden()["decoder.small"][: len(samples)]) < CLOSE


def test_a_missing_tensor_is_named() -> None:
    lacking = {key: value for key, value in weights("small").items() if "pwconv2.bias" not in key}
    with pytest.raises(DuplexError, match=r"upsample\.0\.1\.pwconv2\.bias") as caught:
        CodecDecoder(
            config("small").decoder_config,
            lacking,
            device="cpu",
            dtype=torch.float32,
            slots=1,
            frames=(1,),
            max_batch=1,
        )
    assert caught.value.code is ErrorCode.BAD_CONFIG


@given(chunks=st.lists(st.sampled_from([1, 2, 3, 5, 8]), min_size=1, max_size=6))
@settings(max_examples=15, deadline=None)
def test_any_split_gives_the_same_sound_bit_for_bit(chunks: list[int]) -> None:
    SMALL.reset(2)
    samples = decode(SMALL, 2, codes(0, 40), tuple(chunks))
    assert gap(samples, golden()["decoder.small"]) < CLOSE
    SMALL.reset(2)
    assert torch.equal(samples, decode(SMALL, 2, codes(0, 40), (1,)))


@given(order=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 2, 3])), min_size=1, max_size=20))
@settings(max_examples=15, deadline=None)
def test_slots_take_turns_without_hearing_one_another(order: list[tuple[int, int]]) -> None:
    heard: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
    at = dict.fromkeys(heard, 0)
    for slot in heard:
        SMALL.reset(slot)
    for slot, size in order:
        part = codes(slot, 60)[at[slot] : at[slot] + size]
        heard[slot].append(SMALL.decode(torch.tensor([slot]), part[None])[0])
        at[slot] += size
    for slot, parts in heard.items():
        if parts:
            SMALL.reset(5)
            assert torch.equal(torch.cat(parts), decode(SMALL, 5, codes(slot, 60)[: at[slot]], (8,)))


@pytest.mark.parametrize("frames", [1, 3, 8])
def test_a_slot_sounds_the_same_bit_for_bit_in_a_batch(frames: int) -> None:
    alone, together = decoder("small"), decoder("small")
    for start in range(0, 4 * frames, frames):
        every = torch.stack([codes(slot, 4 * frames)[start : start + frames] for slot in range(6)])
        batch = together.decode(torch.arange(6), every)
        for slot in (4, 0, 3):
            one = alone.decode(torch.tensor([slot]), every[slot][None])[0]
            assert torch.equal(one, batch[slot])


def test_the_order_of_a_batch_is_no_matter() -> None:
    codec = decoder("small")
    every = torch.stack([codes(slot, 3) for slot in range(4)])
    first = codec.decode(torch.arange(4), every)
    for slot in range(4):
        codec.reset(slot)
    order = torch.tensor([2, 0, 3, 1])
    assert torch.equal(codec.decode(order, every[order]), first[order])


@pytest.mark.parametrize("name", ["small", "window"])
@pytest.mark.parametrize("heard", [1, 7, 90, 150])
def test_priming_is_decoding_without_sound(name: str, heard: int) -> None:
    codec = decoder(name)
    frames = codes(3, heard + 12)
    whole = decode(codec, 0, frames)
    codec.prime(1, frames[:heard])
    per_frame = codec.frame_samples
    assert gap(decode(codec, 1, frames[heard:]), whole[heard * per_frame :]) < CLOSE


def test_a_slot_is_primed_in_pieces_too() -> None:
    codec = decoder("small")
    frames = codes(3, 60)
    whole = decode(codec, 0, frames)
    for start, end in ((0, 3), (3, 40), (40, 41), (41, 52)):
        codec.prime(1, frames[start:end])
    assert gap(decode(codec, 1, frames[52:]), whole[52 * codec.frame_samples :]) < CLOSE


@pytest.mark.parametrize("name", ["small", "window"])
def test_the_vocoder_forgets_what_is_older_than_its_history(name: str) -> None:
    codec = decoder(name)
    history = frames_of_history(codec.weights)
    x = torch.randn(1, history + 9, codec.config.hidden_size)
    states = []
    for start in (0, 9):
        codec.reset(0)
        step = codec.open_pass(torch.tensor([0]), history + 9 - start)
        part = x[:, start:]
        for _, run in codec.parts[1:]:
            part = run(step, part)
        states.append(step._context.clone())  # type: ignore[attr-defined]
    embedded = codec.weights.embedded  # the trunk's, which is not run here
    assert embedded.start == 0
    assert gap(states[0][:, embedded.size :], states[1][:, embedded.size :]) < CLOSE


def test_a_snapshot_starts_any_number_of_streams() -> None:
    codec = decoder("small")
    frames = codes(4, 30)
    whole = decode(codec, 0, frames)
    snapshot = codec.snapshot(frames[:25])
    assert len(snapshot.position) == 1
    for slot in (1, 2):
        decode(codec, slot, codes(9, 4))  # of another stream
        codec.load(slot, snapshot)
        assert gap(decode(codec, slot, frames[25:]), whole[25 * codec.frame_samples :]) < CLOSE
    assert int(snapshot.position) == 25
    assert int(snapshot.frame) == 0


def test_a_saved_slot_goes_on_elsewhere() -> None:
    codec = decoder("small")
    frames = codes(5, 20)
    whole = decode(codec, 0, frames)
    decode(codec, 1, frames[:11])
    saved = codec.save(1)
    decode(codec, 1, codes(6, 5))  # the copy is its own
    codec.load(3, saved)
    assert gap(decode(codec, 3, frames[11:]), whole[11 * codec.frame_samples :]) < CLOSE
    assert int(codec.state.frame[3]) == 20


def test_a_reset_slot_has_heard_nothing() -> None:
    codec = decoder("small")
    frames = codes(0, 20)
    first = decode(codec, 2, frames)
    codec.reset(2)
    assert torch.equal(decode(codec, 2, frames), first)


def test_a_reset_clears_what_is_not_a_number() -> None:
    codec = decoder("small")
    first = decode(codec, 2, codes(0, 3))
    codec.state.ring[2].fill_(float("nan"))
    codec.state.context[2].fill_(float("inf"))
    codec.reset(2)
    assert torch.equal(decode(codec, 2, codes(0, 3)), first)


def test_other_slots_are_left_alone() -> None:
    codec = decoder("small")
    decode(codec, 1, codes(1, 9))
    before = codec.state.clone()
    decode(codec, 4, codes(4, 9))
    codec.prime(0, codes(5, 9))
    codec.reset(5)
    for name in ("context", "ring", "position", "frame"):
        assert torch.equal(getattr(codec.state, name)[1:4], getattr(before, name)[1:4])


def test_codes_out_of_range_are_clamped() -> None:
    codec = decoder("small")
    wild = codes(0, 4)
    wild[1], wild[2] = 2150, -3
    tame = wild.clamp(0, codec.config.codebook_size - 1)
    assert torch.equal(decode(codec, 0, wild), decode(codec, 1, tame))


def test_a_place_past_the_table_of_positions_is_like_any_other() -> None:
    """Attention is relative: the same frames a long way on sound the same."""
    codec = decoder("small")
    near = decode(codec, 0, codes(0, 30))
    codec.state.position[1] = 8 * 2000  # twice max_position_embeddings, a multiple of the window
    far = decode(codec, 1, codes(0, 30))
    skip = 8 * 2 * codec.frame_samples  # until two layers' windows are full of the new frames
    assert gap(near[skip:], far[skip:]) < 1e-3  # phases of far positions are rounded


@pytest.mark.parametrize("frames", [(), (0, 1), (1, 9)])
def test_impossible_chunk_sizes_are_refused(frames: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="frames must be"):
        decoder("small", frames=frames)


def test_a_chunk_size_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(ValueError, match="frames, not 4"):
        decoder("small").decode(torch.tensor([0]), codes(0, 4)[None])


def ring_of(kept: int, slots: int = 7) -> torch.Tensor:
    return torch.full((slots, kept, 16), 2150, dtype=torch.int32)


def test_launches_follow_the_ring_of_codes() -> None:
    codec, plain = decoder("small"), decoder("small")
    ring = ring_of(8)
    codec.capture(ring)
    streams = {1: codes(1, 21), 4: codes(4, 21)}
    codec.prime(4, codes(9, 13))  # reference frames are in no ring
    plain.prime(4, codes(9, 13))
    put = 0
    heard: dict[int, list[torch.Tensor]] = {1: [], 4: []}
    for size in (1, 2, 5, 8, 5):
        for frame in range(put, put + size):
            for slot, frames in streams.items():
                ring[slot, frame % 8] = frames[frame].int()
        put += size
        ticket = codec.launch([4, 1], size)
        assert ticket.done()
        result = ticket.result()
        assert result.dtype == "float32"
        assert result.shape == (2, size * codec.frame_samples)
        for row, slot in enumerate((4, 1)):
            heard[slot].append(torch.from_numpy(result[row]))
    for slot, parts in heard.items():
        assert gap(torch.cat(parts), decode(plain, slot, streams[slot])) < CLOSE


def test_launches_have_limits() -> None:
    codec = decoder("small", max_batch=2)
    with pytest.raises(RuntimeError, match="capture"):
        codec.launch([0], 1)
    codec.capture(ring_of(8))
    with pytest.raises(ValueError, match="1 … 2 slots, not 3"):
        codec.launch([0, 1, 2], 1)


@pytest.mark.parametrize(
    ("max_batch", "buckets"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))]
)
def test_graphs_are_made_for_a_few_batch_sizes(max_batch: int, buckets: tuple[int, ...]) -> None:
    assert decoder("small", slots=8, max_batch=max_batch).buckets == buckets


def test_padding_rows_change_the_scratch_slot_alone() -> None:
    codec, plain = decoder("small"), decoder("small")
    padded = torch.tensor([3, codec.scratch, codec.scratch])
    every = torch.stack([codes(3, 2), codes(7, 2), codes(8, 2)])
    step = codec._decode(padded, every)
    assert gap(step[0], plain._decode(torch.tensor([3]), every[:1])[0]) < CLOSE
    for slot in (0, 1, 2, 4, 5):
        row: CodecState = codec.state.row(slot)
        assert not row.context.any()
        assert not row.ring.any()
        assert not row.position.any()


def test_the_scratch_slots_place_does_not_grow() -> None:
    """It went up by each launch's frames for each row of padding, past 32 bits after weeks."""
    codec = decoder("small", slots=4, frames=(1, 2))
    ring = torch.zeros(5, 8, codec.config.num_quantizers, dtype=torch.int32)
    padded = torch.tensor([3, codec.scratch])
    for frames in (1, 2, 2):
        codec._decode_next(padded, frames, ring)
    assert codec.state.position.tolist() == [0, 0, 0, 5, 0]
    assert codec.state.frame.tolist() == [0, 0, 0, 5, 0]


def test_bfloat16_is_near() -> None:
    codec = decoder("small", dtype=torch.bfloat16)
    samples = decode(codec, 0, codes(0, 40))
    wanted = golden()["decoder.small"]
    assert samples.dtype == torch.float32
    noise = (samples - wanted).square().mean() / wanted.square().mean()
    assert float(noise) < 0.01  # -20 dB: random weights are no mild case


SMALL = decoder("small")
