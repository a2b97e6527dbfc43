"""Shared memory: who finds what where; and the messages that say so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_type_hints

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.adapters.engine.wire import Unpacker, pack
from duplex.adapters.mage_vl.sight.arena import Arena, Layout, Shape, grow_file, make_file
from duplex.adapters.mage_vl.sight.messages import FromSight, ToSight

EVEN = st.integers(1, 4).map(lambda n: 2 * n)
SHAPES = st.builds(Shape, st.integers(1, 3), EVEN, EVEN)


@pytest.fixture
def file() -> Iterator[int]:
    fd = make_file()
    yield fd
    os.close(fd)


@given(
    batches=st.lists(st.lists(SHAPES, min_size=1, max_size=4), min_size=1, max_size=3),
    width=st.integers(1, 9),
)
def test_every_window_has_memory_of_its_own_and_both_sides_find_it(
    batches: list[list[Shape]], width: int
) -> None:
    patches = max(sum(shape.patches for shape in batch) for batch in batches)
    layout = Layout(slots=len(batches), patches=patches, token_bytes=4 * width)
    fd = make_file()
    try:
        grow_file(fd, layout)
        one, other = Arena(fd, layout), Arena(fd, layout)
    finally:
        os.close(fd)
    written: list[tuple[Any, Any]] = []
    for slot, batch in enumerate(batches):
        for name in ("pixels", "positions", "tokens"):
            mine, theirs = (getattr(side, name)(slot, batch) for side in (one, other))
            for shape, here, there in zip(batch, mine, theirs, strict=True):
                value = len(written) % 251
                here[...] = value
                written.append((there, value))
                if name == "pixels":
                    assert there.shape == (shape.images, 16 * shape.rows, 16 * shape.columns, 3)
                elif name == "positions":
                    assert there.shape == (shape.images, shape.rows, shape.columns, 3)
                else:
                    assert there.shape == (shape.images, shape.tokens_per_image, 4 * width)
    for there, value in written:
        assert (there == value).all(), "nothing was written over"


def test_what_does_not_fit_is_refused(file: int) -> None:
    layout = Layout(slots=2, patches=16, token_bytes=8)
    grow_file(file, layout)
    arena = Arena(file, layout)
    # regions are whole pages, so that a little more may fit; a page more does not
    for slot, shape in ((2, Shape(1, 2, 2)), (0, Shape(9, 4, 4)), (-1, Shape(1, 2, 2))):
        with pytest.raises(ValueError):
            arena.pixels(slot, [shape])


def test_file_grows_and_never_shrinks(file: int) -> None:
    large, small = (Layout(slots=2, patches=patches, token_bytes=64) for patches in (4096, 16))
    grow_file(file, large)
    tail = Arena(file, large).tokens(1, [Shape(1, 64, 64)])[0]
    tail[...] = 7
    grow_file(file, small)
    assert os.fstat(file).st_size == large.size
    assert (tail == 7).all(), "whoever still reads is not cut off"


def test_file_has_no_name(file: int) -> None:
    if not hasattr(os, "memfd_create"):
        pytest.skip("files in memory without a name are Linux's")
    assert "memfd:" in os.readlink(f"/proc/self/fd/{file}")
    assert not os.get_inheritable(file), "only who is given it has it"


def _values(type: Any) -> st.SearchStrategy[Any]:
    """Anything of a field's type."""
    if type is int:
        return st.integers(0, 2**40)
    if type is float:
        return st.floats(allow_nan=False)
    if type is bool:
        return st.booleans()
    if type is str:
        return st.text()
    arguments = get_args(type)
    if arguments and arguments[-1] is Ellipsis:
        return st.lists(_values(arguments[0]), max_size=3).map(tuple)
    if str(type).startswith("dict"):
        return st.dictionaries(st.text(), st.text(), max_size=2)
    if type == Literal["float32", "bfloat16"]:
        return st.sampled_from(["float32", "bfloat16"])
    if arguments:  # a union with None
        return st.one_of(*(st.none() if kind is None.__class__ else _values(kind) for kind in arguments))
    return st.builds(type, **{name: _values(kind) for name, kind in get_type_hints(type).items()})


@pytest.mark.parametrize("union", [ToSight, FromSight], ids=["to", "from"])
@given(data=st.data())
def test_messages_come_out_as_they_went_in(union: Any, data: st.DataObject) -> None:
    sent = data.draw(st.lists(st.one_of([_values(kind) for kind in get_args(union)]), max_size=5))
    stream = b"".join(map(pack, sent))
    cut = data.draw(st.integers(0, len(stream)))
    unpacker: Unpacker[msgspec.Struct] = Unpacker(union)
    assert unpacker.feed(stream[:cut]) + unpacker.feed(stream[cut:]) == sent


def test_numbers_of_patches_and_tokens() -> None:
    shape = Shape(8, 34, 60)  # 960 x 544
    assert (shape.patches, shape.tokens_per_image) == (16_320, 510)
    layout = Layout(slots=3, patches=65_536, token_bytes=2 * 2560)
    assert layout.size == 3 * sum(layout.regions)
    assert np.isclose(layout.size / 65_536 / 3, 768 + 12 + 1280, rtol=1e-3), "2 KB a patch and slot"
