"""Windows and the side information about them, in virtual time."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.adapters.mage_vl.windows.pairing import KEEP_S, MOST_WAITING, WAIT_S, Alone, Paired, Pairing
from duplex.core.errors import ErrorCode
from duplex.core.types import CodecWindow, ImageWindow, VideoWindow


def video(segment: str) -> VideoWindow:
    return VideoWindow(kind="video/mp4", data=b"v", segment_id=segment)


def codec(segment: str) -> CodecWindow:
    return CodecWindow(kind="h264", codec={"packet_bytes": [1]}, segment_id=segment)


def told(ready: list[Paired | Alone]) -> list[tuple[str, bool] | str]:
    """(segment, with side information) of windows; why of side information alone."""
    out: list[tuple[str, bool] | str] = []
    for item in ready:
        if isinstance(item, Alone):
            assert item.error.code is ErrorCode.INVALID_VALUE
            assert not item.error.fatal
            out.append(item.error.message)
        else:
            segment = item.window.segment_id if isinstance(item.window, VideoWindow) else ""
            assert item.codec is None or item.codec.segment_id == segment
            out.append((segment, item.codec is not None))
    return out


def test_side_information_first() -> None:
    pairing = Pairing()
    assert pairing.put(codec("a"), 0) == []
    assert told(pairing.put(video("a"), 1)) == [("a", True)]
    assert pairing.deadline is None


def test_side_information_after() -> None:
    pairing = Pairing()
    assert pairing.put(video("a"), 0) == []
    assert pairing.deadline == WAIT_S
    assert told(pairing.put(codec("a"), 0.1)) == [("a", True)]


def test_a_window_waits_only_so_long_and_a_session_without_side_information_only_once() -> None:
    pairing = Pairing()
    assert pairing.put(video("a"), 0) == []
    assert pairing.due(WAIT_S / 2) == []
    assert told(pairing.due(WAIT_S)) == [("a", False)]
    assert told(pairing.put(video("b"), 1)) == [("b", False)], "nothing is expected any more"
    (why,) = told(pairing.put(codec("b"), 1.1))
    assert "did not wait" in str(why)
    assert pairing.put(video("c"), 2) == [], "but now it is"
    assert told(pairing.put(codec("c"), 2.1)) == [("c", True)]


def test_windows_keep_their_order() -> None:
    pairing = Pairing()
    pairing.put(codec("b"), 0)
    assert pairing.put(video("a"), 0) == []
    assert pairing.put(video("b"), 0) == [], "it has what it needs, but comes after one that waits"
    assert told(pairing.put(codec("a"), 0.1)) == [("a", True), ("b", True)]


def test_windows_without_a_segment_do_not_wait() -> None:
    pairing = Pairing()
    assert told(pairing.put(ImageWindow(data=b"i"), 0)) == [("", False)]
    assert told(pairing.put(video(""), 0)) == [("", False)]
    (why,) = told(pairing.put(codec(""), 0))
    assert "segment_id" in str(why)


def test_side_information_alone_is_refused_by_name() -> None:
    pairing = Pairing()
    pairing.put(codec("a"), 0)
    assert pairing.deadline == KEEP_S
    (why,) = told(pairing.due(KEEP_S))
    assert "no window of the segment 'a'" in str(why)
    pairing.put(codec("b"), 10)
    (why,) = told(pairing.put(codec("b"), 11))
    assert "another came" in str(why)
    assert len(told(pairing.due(inf))) == 1
    assert pairing.deadline is None


def test_what_waits_is_bounded() -> None:
    pairing = Pairing(wait_s=1e9, keep_s=1e9)
    released = [told(pairing.put(video(f"v{i}"), i)) for i in range(20)]
    assert sum(map(len, released)) == 20 - MOST_WAITING
    refused = [told(pairing.put(codec(f"c{i}"), 30)) for i in range(20)]
    assert sum(map(len, refused)) == 20 - MOST_WAITING
    assert len(pairing.due(inf)) == 2 * MOST_WAITING


def test_no_wait_at_all() -> None:
    pairing = Pairing(wait_s=0)
    assert told(pairing.put(video("a"), 0)) == [("a", False)]


steps = st.lists(
    st.tuples(st.sampled_from(["video", "codec", "image", "due"]), st.integers(0, 5), st.floats(0, 2)),
    max_size=40,
)


@given(steps)
@pytest.mark.parametrize("wait_s", [0, WAIT_S])
def test_nothing_is_lost_nor_doubled_nor_reordered(
    wait_s: float, steps: list[tuple[str, int, float]]
) -> None:
    pairing = Pairing(wait_s=wait_s)
    now = 0.0
    windows: list[object] = []
    codecs: list[object] = []
    ready: list[Paired | Alone] = []
    for what, number, later in steps:
        now += later
        if what == "due":
            ready += pairing.due(now)
            assert pairing.deadline is None or pairing.deadline > now
            continue
        put = {"video": video, "codec": codec}.get(what, lambda _: ImageWindow(data=b"i"))(f"s{number}")
        (codecs if isinstance(put, CodecWindow) else windows).append(put)
        ready += pairing.put(put, now)
    ready += pairing.due(inf)
    out = [item.window for item in ready if isinstance(item, Paired)]
    assert list(map(id, out)) == list(map(id, windows))
    used = [item.codec for item in ready if item.codec is not None]
    assert sorted(map(id, used)) == sorted(map(id, codecs))
