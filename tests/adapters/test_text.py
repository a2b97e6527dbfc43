"""The splitter: right boundaries, and the same ones however the text arrives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex.adapters.text import MAX_UNIT, Splitter, has_words, split

SENTENCES = {
    "plain": ["Hello there. ", "How are you? ", "I'm fine!"],
    "titles": ["Dr. Smith met Mrs. Jones. ", "They spoke."],
    "initials": ["I met J. K. Rowling. ", "She was nice."],
    "word I": ["So do I. ", "Bob left."],
    "money and times": ["He paid $3.50 at 7:30 p.m. ", "He left."],
    "decimals and names": ["Version 3.14 is at example.com. ", "Done."],
    "acronym before a name": ["The U.S. Army is there. ", "He saw it."],
    "acronym at an end": ["He lives in the U.S. ", "They know."],
    "company": ["Apple Inc. Stock rose. ", "He works at Apple Inc. ", "The end."],
    "et cetera": ["Pens, paper, etc. and so on. ", "Pens, etc. ", "Bob left."],
    "latin": ["Take fruit, e.g. apples, i.e. food. ", "Eat."],
    "numbered": ["See fig. 3 and No. 5. ", "No. ", "I won't. ", "Version two."],
    "dates": ["On Jan. 5 it rained. ", "The sun. ", "Bob saw it."],
    "quotes": ['"Stop!" he said. ', '"Go away." ', "She left."],
    "curly quotes": ["“Is it so?” she asked. ", "“Yes.” ", "He left."],
    "brackets": ["What?! ", "(Really.) ", "Yes."],
    "ellipses": ["Well... maybe. ", "Hmm… ", "Maybe not…"],
    "lower case": ["it was good. ", "then he left. ", "it took five hrs. or so."],
    "chinese": ["你好。", "今天天气很好！", "我们走吧？", "好"],
    "japanese quote": ["「行く。」と言った。", "「はい。」", "彼は行った。"],
    "wide number": ["３．１４です。", "はい"],
    "hindi": ["यह अच्छा है। ", "वह गया।"],
    "emoji": ["Great! 😀 ", "Next one. 👨‍👩‍👧 ", "OK 👍🏽 then."],
    "wrapped lines": ["Mr.\nDarcy came to\nLondon. ", "He sat."],
    "paragraphs": ["A title\n\n", "The text. ", "More"],
    "list": ["Buy:\n", "- apples\n", "- pears\n\n", "End"],
    "numbered list": ["1. First item\n", "2. Second item"],
}


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences(name: str) -> None:
    units = SENTENCES[name]
    assert split("".join(units)) == units


def test_clauses() -> None:
    units = [
        "He lived 1990–1995, in a house — ",
        "a big one — by the river; ",
        "then he left: gone, forever.",
    ]
    assert split("".join(units), "clause") == units
    assert split("It costs 1,000,000 at 10:30, they say.", "clause") == [
        "It costs 1,000,000 at 10:30, ",
        "they say.",
    ]
    assert split("从前有一座很高很大的山，山里有一座很小很旧的庙，庙里有人。", "clause")[0].endswith(
        "山里有一座很小很旧的庙，"
    )


def test_none_keeps_all_until_the_flush() -> None:
    splitter = Splitter("none")
    assert splitter.feed("One. Two.\n\n") == []
    assert splitter.pending == "One. Two.\n\n"
    assert splitter.flush() == ["One. Two.\n\n"]
    assert splitter.flush() == []


def test_a_sentence_is_given_as_soon_as_the_next_one_begins() -> None:
    splitter = Splitter()
    assert splitter.feed("Hello there.") == []
    assert splitter.feed(" ") == []
    assert splitter.feed("H") == ["Hello there. "]
    assert splitter.pending == "H"


def test_text_without_punctuation_is_cut_at_spaces() -> None:
    units = split("word " * 500)
    assert all(len(unit) <= MAX_UNIT and unit.endswith(" ") for unit in units)
    assert "".join(units) == "word " * 500
    assert all(len(unit) <= MAX_UNIT for unit in split("x" * 5000))


def test_endless_white_space_or_stops_do_not_wait_for_ever() -> None:
    splitter = Splitter()
    assert splitter.feed("Hello." + " " * 5000)
    assert splitter.feed("." * 5000)


def test_a_forced_cut_keeps_an_emoji_whole() -> None:
    family = "👨‍👩‍👧"
    for unit in split(family * 200, max_unit=41):
        assert not unit.startswith(("\u200d", "\ufe0f"))
        assert not unit.endswith("\u200d")


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="granularity"):
        Splitter("word")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_unit"):
        Splitter(max_unit=1)


def test_has_words() -> None:
    for text in ("a", "7", "好"):
        assert has_words(text)
    assert not has_words("… 😀 — !")


WORDS = """
    Dr. Mr. U.S. No. Jan. I J. etc. Inc. The the Bob 3 3.14 1. - . ! ? … ... , ; : — “ ” " ' ( ) 。 ， 「 」
    と 你好 😀 👍🏽 \u200d word Word won't
"""
FRAGMENTS = st.sampled_from([*WORDS.split(), " ", "  ", "\t", "\n", "\n\n"])
TEXTS = st.lists(FRAGMENTS | st.text(max_size=4), max_size=40).map("".join)
GRANULARITIES = st.sampled_from(["sentence", "clause", "none"])


@settings(deadline=None)
@given(text=TEXTS, granularity=GRANULARITIES, data=st.data(), max_unit=st.sampled_from([20, 33, 400]))
def test_units_do_not_depend_on_the_pieces(
    text: str, granularity: str, data: st.DataObject, max_unit: int
) -> None:
    whole = split(text, granularity, max_unit=max_unit)  # type: ignore[arg-type]
    assert "".join(whole) == text
    assert all(whole)
    splitter = Splitter(granularity, max_unit=max_unit)  # type: ignore[arg-type]
    units = []
    rest = text
    while rest:
        size = data.draw(st.integers(1, max(1, min(len(rest), 12))))
        units += splitter.feed(rest[:size])
        rest = rest[size:]
    assert units + splitter.flush() == whole


@settings(deadline=None)
@given(text=TEXTS)
def test_units_are_bounded(text: str) -> None:
    assert all(len(unit) <= 2 * 20 for unit in split(text, max_unit=20))
