"""Side information from clients: checked, bounded, used."""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from video_clips import still
from window_pieces import moving_square, texture, whole

from duplex.adapters.mage_vl.windows.codec import CodecWindows
from duplex.adapters.mage_vl.windows.side_information import MOST_FRAMES, MOST_NUMBERS, SideInformation, read
from duplex.codecs.number_arrays import DTYPES, pack_numbers
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import CodecWindow, VideoWindow


def said(**codec: Any) -> CodecWindow:
    return CodecWindow(kind="h264", codec=codec, segment_id="s")


def grid(frames: int, hot: tuple[int, int], rows: int = 4, columns: int = 6) -> np.ndarray:
    """Costs that are all in one of the blocks of 128 × 192 pixels."""
    costs = np.zeros((frames, rows, columns))
    costs[:, hot[0] * rows // 4, hot[1] * columns // 6] = 1000
    return costs


def chosen_of(window: VideoWindow, codec: CodecWindow | None, place: tuple[int, int]) -> int:
    """How many frames a block is shown of, besides the anchor."""
    seen = CodecWindows(max_pixels=150_000, image_max_pixels=150_000).see(window, codec)
    assert seen is not None
    rows = seen.positions[1:].reshape(-1, 3).tolist()
    return len({t for t, row, column in rows if (row // 2, column // 2) == place})


PLACE = (3, 1)
CASES = {
    "bit_cost": {"bit_cost": grid(25, PLACE).tolist()},
    "residual_energy": {"residual_energy": grid(25, PLACE).tolist()},
    "motion_vectors": {"motion_vectors": np.stack([grid(25, PLACE)] * 2, -1).tolist()},
    "both": {
        "motion_vectors": np.stack([grid(25, PLACE, 8, 12)] * 2, -1).tolist(),
        "residual_energy": grid(25, PLACE).tolist(),
        "packet_bytes": [100] * 25,
        "frame_types": ["I"] + ["P"] * 24,
    },
}


@pytest.mark.parametrize("codec", CASES.values(), ids=CASES)
@pytest.mark.parametrize("stills", [False, True])
def test_what_the_client_says_chooses_the_blocks(codec: dict[str, Any], stills: bool) -> None:
    pictures = [texture(128, 192, seed=i) for i in range(25)]
    window = whole(pictures)
    if stills:
        window = VideoWindow(kind="", frames=tuple(map(still, pictures)), duration_ms=1000.0)
    assert chosen_of(window, said(**codec), PLACE) >= 22
    assert chosen_of(window, None, PLACE) < 20


def test_frame_types_say_which_frames_are_not_shown() -> None:
    window = VideoWindow(kind="", frames=tuple(map(still, moving_square(12))), duration_ms=500.0)
    types = ["P"] * 12
    types[0] = types[5] = "I"
    seen = CodecWindows(max_pixels=150_000, image_max_pixels=150_000).see(window, said(frame_types=types))
    assert seen is not None
    assert {0, 5}.isdisjoint(seen.positions[..., 0].ravel().tolist())


def test_frames_that_cost_more_than_others_are_told_by_packet_sizes_or_residuals() -> None:
    info = read(said(residual_energy=[1.0, 3.0, 0.0]))
    estimate = np.ones((8, 8), np.float32)
    totals = [float(info.refine(i, 3, estimate).sum()) for i in range(3)]
    assert totals[1] == pytest.approx(3 * totals[0])
    assert totals[2] == 0


@given(frames=st.integers(1, 40), index=st.integers(-3, 100), of=st.integers(0, 80))
def test_other_counts_of_frames_are_taken_by_time(frames: int, index: int, of: int) -> None:
    info = read(
        said(frame_types=["I"] + ["P"] * (frames - 1), bit_cost=np.arange(frames)[:, None, None].tolist())
    )
    at = float(info.refine(index, of, np.zeros((4, 4), np.float32))[0, 0])
    assert at == min(max(0, index) * frames // max(1, of), frames - 1)
    assert info.is_key(index, of) is (at == 0)


@pytest.mark.parametrize(
    ("codec", "param", "words"),
    [
        ({"mv": [1]}, "data.codec", "none of"),
        ({"motion_vectors": "x"}, "data.codec.motion_vectors", "lists"),
        ({"motion_vectors": [[1, 2]]}, "data.codec.motion_vectors", "4 dimensions"),
        ({"motion_vectors": [[[[1], [2]]]]}, "data.codec.motion_vectors", "dx, dy"),
        ({"motion_vectors": [[[[1, 2]], [[1]]]]}, "data.codec.motion_vectors", "equal length"),
        ({"residual_energy": []}, "data.codec.residual_energy", "dimensions"),
        ({"residual_energy": [[[]]]}, "data.codec.residual_energy", "dimensions"),
        ({"residual_energy": [-1.0]}, "data.codec.residual_energy", "below 0"),
        ({"residual_energy": [float("nan")]}, "data.codec.residual_energy", "finite"),
        ({"residual_energy": [1e60]}, "data.codec.residual_energy", "finite"),
        ({"residual_energy": ["a"]}, "data.codec.residual_energy", "numbers"),
        ({"residual_energy": {"a": 1}}, "data.codec.residual_energy", "lists"),
        ({"packet_bytes": [[1]]}, "data.codec.packet_bytes", "1 dimensions"),
        ({"bit_cost": [[[[[[[1]]]]]]]}, "data.codec.bit_cost", "deeply"),
        ({"frame_types": "IPP"}, "data.codec.frame_types", "list of strings"),
        ({"frame_types": [1]}, "data.codec.frame_types", "list of strings"),
        ({"packet_bytes": [1, 2], "residual_energy": [1]}, "data.codec", "different numbers of frames"),
    ],
)
def test_what_cannot_be_understood_is_refused_by_name(codec: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(DuplexError, match=words) as refused:
        read(said(**codec))
    assert refused.value.code is ErrorCode.INVALID_VALUE
    assert refused.value.param == param


@pytest.mark.parametrize(
    "codec",
    [
        {"packet_bytes": [1] * (MOST_FRAMES + 1)},
        {"frame_types": ["P"] * (MOST_FRAMES + 1)},
        {"bit_cost": [[[0] * 2000] * 2000]},
    ],
)
def test_too_much_is_refused_by_name(codec: dict[str, Any]) -> None:
    with pytest.raises(DuplexError) as refused:
        read(said(**codec))
    assert refused.value.code is ErrorCode.MEDIA_TOO_LARGE


numbers = (
    st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(10**400), 10**400) | st.text(max_size=3)
)
nested = st.recursive(numbers | st.none() | st.booleans(), lambda s: st.lists(s, max_size=4), max_leaves=30)
names = st.sampled_from(["bit_cost", "motion_vectors", "residual_energy", "packet_bytes", "frame_types", "x"])


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(names, nested, min_size=1))
def test_anything_is_understood_or_refused_by_name(codec: dict[str, Any]) -> None:
    refusal = None
    try:
        info = read(CodecWindow(kind="h264", codec=codec))
    except DuplexError as error:
        refusal = error.code
    if refusal is not None:
        assert refusal in (ErrorCode.INVALID_VALUE, ErrorCode.MEDIA_TOO_LARGE)
        return
    costs = info.refine(0, info.frames, np.ones((8, 8), np.float32))
    assert np.isfinite(costs).all()
    assert costs.min() >= 0


def test_a_window_with_bad_side_information_is_refused_and_loses_nothing_else() -> None:
    watching = CodecWindows(max_pixels=150_000, image_max_pixels=150_000)
    window = whole(moving_square(10))
    with pytest.raises(DuplexError):
        watching.see(window, said(residual_energy=[-1]))
    assert watching.see(window) is not None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "codec",
    [
        {"motion_vectors": np.full((2, 4, 6, 2), 3e38).tolist()},
        {"packet_bytes": [3e38, 3e38]},
        {"residual_energy": [3e38, 3e38]},
        {"packet_bytes": [3e38, 1.0], "bit_cost": np.full((2, 4, 6), 3e38).tolist()},
    ],
)
def test_the_largest_numbers_overflow_nothing(codec: dict[str, Any]) -> None:
    side = read(said(**codec))
    estimate = np.ones((8, 12), np.float32)
    assert np.isfinite([side.refine(index, 2, estimate) for index in range(2)]).all()


# --- arrays as bytes ----------------------------------------------------------------------------------


def dense(dtype: str, shape: Any, data: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data": data}


def outcome(window: CodecWindow) -> SideInformation | tuple[ErrorCode, str | None]:
    try:
        return read(window)
    except DuplexError as error:
        return error.code, error.param


RANKS = {"bit_cost": (3,), "motion_vectors": (4,), "residual_energy": (1, 3), "packet_bytes": (1,)}


@settings(deadline=None, max_examples=300)
@given(data=st.data(), name=st.sampled_from(sorted(RANKS)), dtype=st.sampled_from(DTYPES), text=st.booleans())
def test_bytes_mean_what_lists_of_the_same_numbers_mean(
    data: st.DataObject, name: str, dtype: Literal["u1"], text: bool
) -> None:
    ranks = st.sampled_from(RANKS[name]) | st.integers(1, 5)
    shape = tuple(
        data.draw(ranks.flatmap(lambda rank: st.lists(st.integers(1, 3), min_size=rank, max_size=rank)))
    )
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = data.draw(st.binary(min_size=size, max_size=size))
    numbers = np.frombuffer(raw, f"<{dtype}").reshape(shape)
    sent = base64.b64encode(raw).decode() if text else raw
    with np.errstate(over="ignore"):
        listed = outcome(said(**{name: numbers.tolist()}))
    packed = outcome(said(**{name: dense(dtype, list(shape), sent)}))
    if not isinstance(listed, SideInformation) or not isinstance(packed, SideInformation):
        assert listed == packed  # refused alike, by the same name
        return
    assert (listed.frames, listed.exact) == (packed.frames, packed.exact)
    for field in ("costs", "frame_bits", "key"):
        np.testing.assert_array_equal(getattr(listed, field), getattr(packed, field))


@pytest.mark.parametrize(
    ("array", "code", "words"),
    [
        ({}, ErrorCode.INVALID_VALUE, "dtype, shape and data"),
        ({"dtype": "u1", "shape": [1]}, ErrorCode.INVALID_VALUE, "dtype, shape and data"),
        (dense("u1", [1], b"1") | {"order": "F"}, ErrorCode.INVALID_VALUE, "dtype, shape and data"),
        (dense("f8", [1], bytes(8)), ErrorCode.INVALID_VALUE, "dtype must be one of u1"),
        (dense(">f4", [1], bytes(4)), ErrorCode.INVALID_VALUE, "dtype must be one of u1"),
        ({**dense("u1", [1], b"1"), "dtype": ["u1"]}, ErrorCode.INVALID_VALUE, "dtype must be one of u1"),
        (dense("u1", 1, b"1"), ErrorCode.INVALID_VALUE, "shape must be a list"),
        (dense("u1", [], b"1"), ErrorCode.INVALID_VALUE, "shape must be a list"),
        (dense("u1", [1] * 9, b"1"), ErrorCode.INVALID_VALUE, "shape must be a list"),
        (dense("u1", [-1, -1], b"1"), ErrorCode.INVALID_VALUE, "whole numbers from 1"),
        (dense("u1", [0, 10**400], b""), ErrorCode.INVALID_VALUE, "whole numbers from 1"),
        (dense("u1", [1.0], b"1"), ErrorCode.INVALID_VALUE, "whole numbers from 1"),
        (dense("u1", [True], b"1"), ErrorCode.INVALID_VALUE, "whole numbers from 1"),
        (dense("u2", [3], bytes(5)), ErrorCode.INVALID_VALUE, "5 bytes; its shape and dtype need 6 bytes"),
        (dense("u2", [3], b""), ErrorCode.INVALID_VALUE, "0 bytes; its shape and dtype need 6 bytes"),
        (dense("u1", [1, 1], b"1"), ErrorCode.INVALID_VALUE, "dimensions"),
        (dense("u1", [1], [1]), ErrorCode.INVALID_VALUE, "must be bin, or base64"),
        (dense("u1", [1], "AA"), ErrorCode.INVALID_BASE64, "must be base64"),
        (dense("u1", [1], "A A=="), ErrorCode.INVALID_BASE64, "must be base64"),
        (dense("u1", [1], "é==="), ErrorCode.INVALID_BASE64, "must be base64"),
        (dense("i1", [1], b"\xff"), ErrorCode.INVALID_VALUE, "below 0"),
        (dense("f2", [1], b"\x00\x7e"), ErrorCode.INVALID_VALUE, "finite"),
        (dense("f4", [1], b"\x00\x00\x80\x7f"), ErrorCode.INVALID_VALUE, "finite"),
        (dense("u1", [MOST_FRAMES + 1], bytes(MOST_FRAMES + 1)), ErrorCode.MEDIA_TOO_LARGE, "4,097 frames"),
        (dense("u1", [2, MOST_NUMBERS], b""), ErrorCode.MEDIA_TOO_LARGE, "2,000,000 numbers"),
        (dense("u1", [10**400], b""), ErrorCode.MEDIA_TOO_LARGE, "2,000,000 numbers"),
        (b"1234", ErrorCode.INVALID_VALUE, "an object of dtype, shape and data"),
    ],
)
def test_what_is_wrong_with_bytes_is_refused_by_name(array: Any, code: ErrorCode, words: str) -> None:
    with pytest.raises(DuplexError, match=words) as refused:
        read(said(packet_bytes=array))
    assert (refused.value.code, refused.value.param) == (code, "data.codec.packet_bytes")
    assert refused.value.message.startswith("codec.packet_bytes: ")


def test_as_many_numbers_are_taken_as_are_promised() -> None:
    shape = (20, 200, 250, 2)
    assert np.prod(shape) == MOST_NUMBERS
    vectors = np.zeros(shape, np.float32)
    vectors[7, 3, 4] = 30, 40
    info = read(said(motion_vectors=pack_numbers(vectors)))
    assert info.costs is not None
    assert np.argwhere(info.costs).tolist() == [[7, 3, 4]]


@pytest.mark.parametrize(
    ("given", "dtype"),
    [(d, d) for d in DTYPES] + [("i4", "f4"), ("i8", "f4"), ("f8", "f4"), ("?", "u1"), (">u2", "u2")],
)
def test_arrays_of_any_numbers_can_be_packed(given: str, dtype: str) -> None:
    array = np.array([[[0, 1, 1]], [[1, 0, 1]]], given).transpose(0, 2, 1)
    packed = pack_numbers(array)
    assert (packed["dtype"], packed["shape"]) == (dtype, [2, 3, 1])
    costs = read(said(bit_cost=packed)).costs
    assert costs is not None
    assert costs.tolist() == array.astype(float).tolist()


@pytest.mark.parametrize("array", [np.array(1), np.array(["a"]), np.array([1j]), np.array([None])])
def test_what_is_no_array_of_numbers_is_not_packed(array: Any) -> None:
    with pytest.raises(DuplexError, match="of numbers"):
        pack_numbers(array)
