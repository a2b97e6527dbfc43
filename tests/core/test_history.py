"""The conversation as it was heard, and the rolling windows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duplex.core import types as t
from duplex.core.history import MAX_CHARACTERS, MAX_ITEMS, Conversation, RollingWindows


def texts(conversation: Conversation) -> list[str]:
    return [item.text for item in conversation.items]


def test_an_answer_is_replaced_by_what_was_heard_of_it_in_its_place() -> None:
    conversation = Conversation()
    conversation.user_said("a story!")
    conversation.assistant_said(1, "Once upon a time")
    conversation.user_said("stop")
    conversation.assistant_said(1, "Once upon", interrupted=True)
    assert texts(conversation) == ["a story!", "Once upon", "stop"]
    assert conversation.items[1].interrupted


def test_what_was_not_heard_leaves_no_item_and_can_come_back_in_its_place() -> None:
    conversation = Conversation()
    conversation.user_said("first")
    conversation.assistant_said(1, "one")
    conversation.assistant_said(2, "two")
    conversation.assistant_said(1, "")
    assert texts(conversation) == ["first", "two"]
    conversation.assistant_said(1, "o")
    assert texts(conversation) == ["first", "o", "two"]
    conversation.assistant_said(3, "")
    assert len(conversation.items) == 3


def test_the_oldest_items_go_first() -> None:
    conversation = Conversation()
    for number in range(MAX_ITEMS + 5):
        conversation.user_said(str(number))
    assert texts(conversation) == [str(n) for n in range(5, MAX_ITEMS + 5)]


def test_one_long_item_keeps_its_beginning() -> None:
    conversation = Conversation()
    conversation.user_said("before")
    conversation.user_said("x" + "y" * MAX_CHARACTERS)
    assert texts(conversation) == ["x" + "y" * (MAX_CHARACTERS - 1)]
    conversation.assistant_said(1, "z" * (MAX_CHARACTERS + 1))
    assert len(texts(conversation)[-1]) == MAX_CHARACTERS


@given(
    st.lists(
        st.one_of(
            st.integers(0, 40_000).map(lambda n: ("user", 0, n)),
            st.tuples(st.just("assistant"), st.integers(1, 12), st.integers(0, 40_000)),
        ),
        max_size=60,
    )
)
def test_a_conversation_is_bounded_and_ordered_whatever_is_said(steps: list[tuple[str, int, int]]) -> None:
    conversation = Conversation()
    for role, index, length in steps:
        if role == "user":
            conversation.user_said("u" * length)
        else:
            conversation.assistant_said(index, "a" * length)
        items = conversation.items
        assert len(items) <= MAX_ITEMS
        assert sum(len(i.text) for i in items) <= MAX_CHARACTERS
        indices = [i.response_index for i in items if i.response_index is not None]
        assert indices == sorted(set(indices))


def test_windows_are_bounded_in_number_and_bytes_but_the_newest_stays() -> None:
    windows = RollingWindows(3, 1000)
    small = [t.ImageWindow(data=bytes([n])) for n in range(5)]
    for window in small:
        windows.add(window)
    assert windows.items == tuple(small[2:])
    half = t.VideoWindow(kind="video/mp4", data=bytes(300), frames=(bytes(150), bytes(100)))
    windows.add(half)
    windows.add(half)
    assert windows.items == (half,)
    huge = t.VideoWindow(kind="video/mp4", data=bytes(5000))
    windows.add(huge)
    assert windows.items == (huge,)
    windows.add(small[0])
    assert windows.items == (small[0],)
    windows.clear()
    windows.add(half)
    assert windows.items == (half,)


def test_codec_windows_weigh_what_their_numbers_take() -> None:
    def window(rows: int) -> t.CodecWindow:
        vectors = [[1, 2, 3, 4] for _ in range(rows)]
        return t.CodecWindow(kind="h264", codec={"motion_vectors": vectors, "note": "x" * 10})

    windows = RollingWindows(64, 100_000)
    for _ in range(10):
        windows.add(window(100))  # about 7 kB each
    assert len(windows.items) == 10
    for _ in range(10):
        windows.add(window(500))  # about 36 kB each
    assert len(windows.items) == 2


def test_a_deeply_nested_codec_window_is_weighed_without_harm() -> None:
    nested: dict[str, object] = {}
    for _ in range(3000):
        nested = {"a": [nested]}
    windows = RollingWindows(4, 1000)
    windows.add(t.CodecWindow(kind="h264", codec=nested))
    assert len(windows.items) == 1
