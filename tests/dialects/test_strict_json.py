"""One strict reading of JSON: what parsers differ about is refused by name."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex.core.errors import DuplexError, ErrorCode
from duplex.dialects.strict_json import MAX_DEPTH, MAX_MARKS, parse, parse_object

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
).filter(lambda value: "Infinity" not in json.dumps(value))


def refused(text: str | bytes) -> str:
    with pytest.raises(DuplexError) as caught:
        parse(text)
    assert caught.value.code is ErrorCode.INVALID_JSON
    assert "must be a JSON object" in caught.value.message
    return caught.value.message


@settings(deadline=None)
@given(json_values, st.booleans())
def test_reads_what_json_says(value, ascii_only):
    assert parse(json.dumps(value, ensure_ascii=ascii_only)) == value


@settings(deadline=None)
@given(st.text() | st.binary())
def test_anything_else_is_refused_by_name(junk):
    try:
        value = parse(junk)
    except DuplexError:
        refused(junk)
    else:  # stricter than the standard library, never looser
        assert json.loads(junk) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": "\\ud800"}',
        '{"a": "\\udc00x"}',
        '{"a": "\\ud800\\u0041"}',
        '{"a": 1,}',
        "{'a': 1}",
        '{"a": 1} {"b": 2}',
        '{"a": "\x00"}',
        '\ufeff{"a": 1}',
        '{"a": "\ud800"}',
        b'{"a": "\xff"}',
        '{"a": ' + "1" * 5000 + "}",
    ],
)
def test_malformed(text):
    refused(text)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"type": "close", "type": "input.commit"}', "'type'"),
        ('{"a": {"b": 1, "b": 2}}', "'b'"),
        ('{"a": [{"b": 1}, {"c": 1, "c": 1}]}', "'c'"),
        ('{"type": "close", "\\u0074ype": "close"}', "'type'"),
        ('{"a:b": 1, "a:b": 2}', "'a:b'"),
    ],
)
def test_a_key_that_is_there_twice_is_named(text, key):
    assert f"the key {key} is there twice" in refused(text)


def test_a_colon_in_a_string_is_no_second_key():
    assert parse('{"data": "12:30:00 :", "b:c": [":", {"d": ":"}]}') == {
        "data": "12:30:00 :",
        "b:c": [":", {"d": ":"}],
    }


def test_nesting_is_bounded():
    assert parse("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))
    assert "nested deeper" in refused("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2))
    assert "nested deeper" in refused("[" * 10_000)
    assert "nested deeper" in refused('{"a":' * 10_000)


@pytest.mark.parametrize(("item", "marks"), [("0", 1), ('""', 1), ("[]", 2), ("{}", 2), ('{"a":0}', 3)])
def test_a_message_of_many_small_values_is_refused_before_it_is_built(item, marks):
    count = MAX_MARKS // marks
    with pytest.raises(DuplexError, match="more than 150000 commas, colons and opening brackets") as caught:
        parse("[" + (item + ",") * count + "0]")
    assert caught.value.code is ErrorCode.INPUT_OVERFLOW


def test_half_a_surrogate_pair_is_not_called_truncation():
    assert "half of a surrogate pair" in refused('{"a": "\\ud800"}')
    assert refused('{"a": "x').endswith("it ends too early")


@pytest.mark.parametrize("mark", [",", ":", "[", "{"])
def test_a_long_text_of_marks_passes(mark):
    text = mark * 131_072
    assert parse_object(json.dumps({"type": "input.append", "data": text}))["data"] == text


def test_one_key_twice_among_many_is_found():
    keys = ",".join(f'"k{i}":0' for i in range(70_000))
    assert "'k5' is there twice" in refused("{" + keys + ',"k5":0}')


def test_whole_numbers_beyond_64_bits_are_exact():
    assert parse('{"a": 9223372036854775808}') == {"a": 2**63}


@pytest.mark.parametrize(
    ("text", "what"),
    [("[]", "an array"), ('"a"', "a string"), ("1", "a number"), ("true", "a boolean"), ("null", "null")],
)
def test_not_an_object(text, what):
    with pytest.raises(DuplexError) as caught:
        parse_object(text)
    assert caught.value.code is ErrorCode.NOT_AN_OBJECT
    assert caught.value.message == f"the message must be a JSON object, not {what}"
