"""Extraction of JSON from text: tolerant of the text around a value, strict for the value, and fast for hostile input."""

import itertools
import json
import time

import pytest
from hypothesis import given, settings, strategies as st

from actgent.errors import ParseError
from actgent.structured_output.extract_json import (
    MAX_DEPTH,
    extract,
    extract_only,
    is_truncated,
    loads,
    parse_partial_json,
    remove_thinking,
)

VALUE = {"a": [1, {"b": "x"}]}
TEXT = json.dumps(VALUE)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
SOUP = st.text(alphabet="{}[]()<>\"'`,:=\\/ \nabtkhinTrue0123.-*#é\ud800", max_size=120)


def is_object(value):
    return None if isinstance(value, dict) else "not an object"


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        f"\ufeff \n{TEXT}\n",
        f"```json\n{TEXT}\n```",
        f"```\n{TEXT}\n```",
        f"```json\n{TEXT}\n",
        f"```json{TEXT}```",
        f"{TEXT}\n```",
        f"Here it is: {TEXT} I hope it helps.",
        f"With {{braces}} and [brackets] before: {TEXT}",
        f"I'd say it's {TEXT}, isn't it?",
        f"答案是{TEXT}。",
        f'<think>maybe {{}} or {{"a": 2}}</think>{TEXT}',
        f'maybe so, or {{"a": 2}}</think>\n{TEXT}',
        f"For x in [0, 1) and f(y]: {TEXT}",
        f"<tool_call>\n{TEXT}\n</tool_call>",
        "{'a': [1, {'b': 'x'}]}",
        "{a: [1, {b: 'x'}]}",
        '{"a": [1, {"b": "x"},],}',
        '{"a": [1, {"b": "x"}] // why not\n}',
        '{"a": [1, /* one */ {"b": "x"}]}',
        "{“a”: [1, {“b”: “x”}]}",
        '{"a": [1 {"b": "x"}]}',
    ],
)
def test_json_in_text_is_extracted(text):
    """Text around a value and small syntax errors do not prevent the extraction."""
    assert extract(text) == VALUE
    assert extract_only(text, is_object) == VALUE


def test_raw_control_characters_in_strings_are_accepted():
    assert extract('{"a": "one\ntwo\tthree"}') == {"a": "one\ntwo\tthree"}


def test_python_constants_are_parsed():
    """True, False and None are parsed with either kind of quotes."""
    expected = {"a": True, "b": None, "c": "True"}
    assert extract('{"a": True, "b": None, "c": "True"}') == expected
    assert extract("{'a': True, 'b': None, 'c': 'True'}") == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1',
        '{"a": "b',
        '{"a": {"b": 1}',
        '[{"a": 1}, {"a": 2',
        '```json\n{"a": 1\n```',
        'Sure: {"a": {"b": 1}, ',
        "{'a': {'b': 1}",
        '{"a": 1}}'[:-2],
        'f({"a": 1}, ',
    ],
)
def test_unclosed_bracket_is_truncated(text):
    """An unclosed bracket is reported as truncated with its position. No value inside it is an answer."""
    with pytest.raises(ParseError, match="truncated JSON: the bracket at character"):
        extract(text)


@pytest.mark.parametrize(
    "text",
    [
        'get_weather({"city": "Oslo"})',
        'f(1, {"a": 1}), g({"b": 2})',
        'headers = {"Authorization": "x"}',
        '"inner": {"a": 1}',
        '[f(x={"a": 1}), g(y=[2])]',
        '{"total": 2**3, "inner": {"a": 1}}',
        '{"value": result[0], "inner": {"a": 1}}',
        "the third[3] item",
        '{"a": 1}, "b": 2}',
    ],
)
def test_fragments_are_skipped(text):
    """Arguments of calls, assignments and the contents of broken values are skipped as a whole."""
    with pytest.raises(ParseError):
        extract(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1e999}', "too large"),
        ('{"a": 1, "a": 2}', "same key twice"),
        ('{"a": 123456789012345678901}', "64 bits"),
        ('{"a": 18446744073709551616}', "64 bits"),
        ('{"a": ' + "9" * 5000 + "}", "64 bits"),
        ('{"a": "\\ud83d"}', "surrogate"),
        ('{"a": "\ud83d"}', "surrogate"),
        ("[" * 100_000, "nested"),
        ("[" * 200 + "]" * 200, "nested"),
        ('{"a":' * 500 + "1" + "}" * 500, "nested"),
        ("x " + "[" * 100_000, "nested"),
        ('{"values": [1, 2, 3}', "does not match an opening bracket"),
        ("", "no JSON"),
        ("plain words", "no JSON"),
    ],
)
def test_unstorable_values_are_rejected(text, reason):
    """A value that cannot be stored or parsed is rejected with its reason."""
    with pytest.raises(ParseError, match=reason) as caught:
        extract(text)
    assert caught.value.raw == text


def test_edge_values_are_accepted():
    """64-bit integers, complete surrogate pairs and the maximum depth are accepted."""
    assert extract('{"a": [18446744073709551615, -9223372036854775808]}') == {"a": [2**64 - 1, -(2**63)]}
    assert extract('{"a": "\\ud83d\\ude00"}') == {"a": "😀"}
    assert json.dumps(extract("[" * MAX_DEPTH + "]" * MAX_DEPTH)).count("[") == MAX_DEPTH


def test_strings_are_not_searched():
    """JSON in a string is text."""
    value = {"messageType": "x", "content": '```json\n{"a": 1}\n``` and {"b": 2}'}
    assert extract_only(f"So: {json.dumps(value)}") == value


def test_first_value_that_passes_the_check_is_returned():
    """If no value passes, the error has the reason of the first."""
    text = 'Given [1] and {"b": 1}: {"a": 2}'
    assert extract(text, lambda value: None if isinstance(value, dict) and "a" in value else "no a") == {
        "a": 2
    }
    with pytest.raises(ParseError, match="no c"):
        extract(text, lambda _: "no c")


def test_several_different_answers_are_rejected():
    """`extract_only` rejects several different values, and accepts equal ones."""
    with pytest.raises(ParseError, match="2 different JSON objects"):
        extract_only('{"a": 1} or {"a": 2}', is_object)
    assert extract_only('{"a": 1} again {"a": 1}', is_object) == {"a": 1}
    assert extract('{"a": 1} or {"a": 2}') == {"a": 1}
    with pytest.raises(ParseError, match="2 different"):
        extract_only('{"a": 1} or {"a": true}', is_object)


def test_truncated_second_answer_rejects_the_first():
    """The content of the truncated value is unknown."""
    with pytest.raises(ParseError, match="truncated"):
        extract_only('{"a": 1} {"a"', is_object)


def test_repair_keeps_every_word():
    """A repair may change punctuation only. A text that needs added, dropped or quoted words is rejected."""
    assert extract('{"a" "b"}') == {"a": "b"}
    for text in (
        '{"a": 2**3}',
        '[f(x="y")]',
        '{"a": hello world}',
        '{"a": "b" AAAA}',
        '{"a": "b", ...}',
        '{"a": [{}{}]}',
        '{"a": 1/3}',
    ):
        with pytest.raises(ParseError):
            extract(text)


def test_loads_is_strict():
    """`loads` accepts JSON without any text around it."""
    assert loads(' {"a": 1}\n') == {"a": 1}
    for text in ('{"a": 1} x', "{'a': 1}", "```\n{}\n```", ""):
        with pytest.raises(ParseError, match="invalid JSON"):
            loads(text)


def test_thoughts_are_removed():
    """Thinking before the answer is removed. Tags in the answer are kept."""
    assert remove_thinking("<think>a\nb</think>\n\nhello") == "hello"
    assert remove_thinking("<think>never ends {") == ""
    for text in ("a <think> tag", "the <think>x</think> tags", '{"a": "</think>"}'):
        assert remove_thinking(text) == text
    with pytest.raises(ParseError):
        extract('<think>{"a": 1}')


def test_is_cut_detects_unclosed_values():
    """Only a value that opens and does not close is truncated."""
    assert is_truncated('{"a": [')
    assert not any(map(is_truncated, ("{}", "x", "", "[1}")))


def test_partial_text_is_readable_at_every_length():
    """It contains no incomplete escape."""
    text = json.dumps({"a": "é\n😀x"})
    seen = [
        value.get("a", "")
        for length in range(len(text))
        if isinstance(value := parse_partial_json(text[:length]), dict)
    ]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(seen))
    assert seen[-1] == "é\n😀x"


def reading(read, text):
    """Return the value of a text, or None if it is rejected."""
    try:
        return read(text)
    except ParseError:
        return None


@pytest.mark.parametrize(
    "piece", ["[", "{", '{"a":', "[]", "{a}", '{"a":1}', '"', "f(", "`", "{'", '{"a" "b" ', "{'a':1} ", "//"]
)
@pytest.mark.parametrize("around", ["%s", "x %s", "{%s}", '["%s"]'])
def test_hostile_texts_are_parsed_quickly(piece, around):
    """No text of 200,000 characters blocks the loop for long. Quadratic time would take minutes, so a rough bound is sufficient."""
    text = around % (piece * (199_000 // len(piece)))
    begin = time.process_time()
    reading(extract_only, text)
    assert time.process_time() - begin < 10


@given(JSON)
def test_json_values_are_extracted_unchanged(value):
    """Every JSON value is extracted unchanged."""
    assert extract(json.dumps(value)) == value


@given(st.dictionaries(st.text(), JSON, min_size=1, max_size=4), st.data())
def test_no_prefix_of_an_object_is_a_value(value, data):
    """A strict prefix of the text of an object is never a value, for any content."""
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    for prose in ("", "Sure, it's this: ", "```json\n"):
        with pytest.raises(ParseError):
            extract(prose + cut)


@given(SOUP | st.text())
@settings(max_examples=500)
def test_any_text_is_parsed_or_raises_parse_error(text):
    """Any text is parsed or raises ParseError."""
    for read in (extract, extract_only):
        value = reading(read, text)
        assert value is None or loads(json.dumps(value)) == value
