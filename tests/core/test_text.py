"""Whole characters: what of a text may go to the wire."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duplex.core.text import WholeCharacters, well_formed

anything = st.text(
    st.one_of(
        st.characters(codec=None, categories=["Cs", "Lu", "So"]), st.sampled_from("a\ud83d\ude00\ud800\udfff")
    )
)


def reference(text: str) -> str:
    """Character by character."""
    out, position = "", 0
    while position < len(text):
        this = text[position]
        following = text[position + 1 : position + 2]
        if "\ud800" <= this <= "\udbff" and "\udc00" <= following <= "\udfff" and following:
            out += chr(0x10000 + (ord(this) - 0xD800) * 0x400 + ord(following) - 0xDC00)
            position += 2
            continue
        out += "\ufffd" if "\ud800" <= this <= "\udfff" else this
        position += 1
    return out


def test_pairs_are_joined_and_lone_halves_are_marked() -> None:
    assert well_formed("plain") == "plain"
    assert well_formed("grüße 你好 😀") == "grüße 你好 😀"
    assert well_formed("\ud83d\ude00") == "😀"
    assert well_formed("a\ud83db\ude00\ud83d") == "a\ufffdb\ufffd\ufffd"


@given(anything)
def test_whole_text_equals_the_reference_and_can_be_encoded(text: str) -> None:
    assert well_formed(text) == reference(text)
    well_formed(text).encode()


@given(st.lists(anything, max_size=8))
def test_pieces_join_to_the_whole_whatever_they_split(pieces: list[str]) -> None:
    characters = WholeCharacters()
    out = [characters.push(piece) for piece in pieces]
    for piece in out:
        piece.encode()
    assert "".join(out) + characters.end() == reference("".join(pieces))
    assert characters.end() == ""
