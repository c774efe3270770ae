"""JSON as models write it: each parsed value is in the text, and a text that no rule allows is rejected."""

import itertools
import json
import re

import pytest
from hypothesis import given, settings, strategies as st

from actgent.errors import ParseError
from actgent.structured_output.extract_json import extract, extract_only
from actgent.structured_output.lenient_json import Unreadable, read

WORDS = st.text(alphabet="ab c,:'\"\\{}[]@.\n", max_size=6)
NUMBERS = st.integers(-999, 999) | st.sampled_from([0.5, -1.25, 1e30, 1.5e-7])
LEAVES = WORDS | NUMBERS | st.booleans() | st.none()
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=10,
)
BRACKETED = st.lists(VALUES, min_size=1, max_size=4) | st.dictionaries(WORDS, VALUES, min_size=1, max_size=4)


def leaves(value):
    """Yield each string, number and constant of a value in order, including keys."""
    if isinstance(value, dict):
        return list(itertools.chain.from_iterable([key, *leaves(item)] for key, item in value.items()))
    if isinstance(value, list):
        return list(itertools.chain.from_iterable(map(leaves, value)))
    return [value]


def reading(text, *, repairs):
    """Return the value of a text, or None if it is rejected."""
    try:
        return read(text, repairs=repairs)
    except (Unreadable, ParseError):
        return None


@given(BRACKETED, st.booleans())
def test_python_and_json_texts_are_read_unchanged(value, repairs):
    """Every value survives its JSON text, indented or not, and its Python repr."""
    assert reading(json.dumps(value), repairs=repairs) == value
    assert reading(json.dumps(value, indent=1, ensure_ascii=False), repairs=repairs) == value
    assert reading(repr(value), repairs=repairs) == value


@given(BRACKETED, st.sampled_from(["json", "indented", "python"]), st.data())
@settings(max_examples=400)
def test_a_lost_character_changes_no_leaf(value, spelling, data):
    """After any comma, colon or bracket is removed, the parsed leaves equal the written ones, or the text is rejected."""
    text = {
        "json": lambda: json.dumps(value),
        "indented": lambda: json.dumps(value, indent=1),
        "python": lambda: repr(value),
    }[spelling]()
    outside = [place for place, is_out in enumerate(_outside_of_strings(text)) if is_out]
    marks = [place for place in outside if text[place] in ",:[]{}"]
    lost = data.draw(st.sampled_from(marks))
    for repairs in (False, True):
        found = reading(text[:lost] + text[lost + 1 :], repairs=repairs)
        assert found is None or leaves(found) == leaves(value)


def _outside_of_strings(text):
    """Return for each character of a valid text whether it is outside of strings."""
    inside = [False] * len(text)
    for string in re.finditer(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'', text, re.DOTALL):
        inside[string.start() : string.end()] = [True] * (string.end() - string.start())
    return [not each for each in inside]


@given(st.lists(WORDS | NUMBERS, min_size=2, max_size=5), st.data())
def test_lost_comma_between_scalars_is_rejected(items, data):
    """Two neighbours may be one value, so the text is rejected, whatever is between them."""
    spelled = [data.draw(st.sampled_from([json.dumps, repr]))(item) for item in items]
    lost = data.draw(st.integers(1, len(items) - 1))
    gap = data.draw(st.sampled_from([" ", "\n", "  \n", " // and\n", "/* and */"]))
    text = f"[{', '.join(spelled[:lost])}{gap}{', '.join(spelled[lost:])}]"
    for repairs in (False, True):
        assert reading(text, repairs=repairs) is None
    with pytest.raises(ParseError):
        extract_only(f'{{"to": {text}}}')


@pytest.mark.parametrize(
    "text",
    [
        '["ann@x.org" "bob@x.org"]',
        '["ann@x.org"\n "bob@x.org"]',
        "['ann' 'bob']",
        "{'to': ('ann' 'bob')}",
        "{\"a\" 'b'}",
        "{“to”: “a” “b”}",
        '{"a": "" "x"}',
        '{"a": "x" "b": "y"}',
        '{"a": r"x"}',
        '{"a": """x"""}',
        '{"a": "x" + "y"}',
        '{"a": 01}',
        '{"a": 0x10}',
        '{"a": 1+2j}',
        '{"a": 2024-01-01}',
        '{"a": "\\1"}',
        '{"a": "\\N{BULLET}", \'b\': 1}',
        "[1,,2]",
        "{9999E9999: 1}",
        "{9E9999: 1}",
        '{"a": 9E9999,}',
        '{"a": 1e-999,}',
        '{"a": NaN,}',
        '{"a": -Infinity,}',
        "{'a': 1, 'a': 2}",
        '{1: 2, "1": 3}',
        "{'a': '\\ud800'}",
        "{'a': 18446744073709551616}",
    ],
)
def test_ambiguous_json_is_rejected(text):
    """No string is joined, quoted or truncated, no number changes, and no key is dropped."""
    assert reading(text, repairs=True) is None
    with pytest.raises(ParseError):
        extract(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1 {"b": 2}]}', {"a": [1, {"b": 2}]}),
        ("[{}\n{}]", [{}, {}]),
        ('{"a": "x"\n"b": "y"}', {"a": "x", "b": "y"}),
        ('{"a" "b"}', {"a": "b"}),
        ('{"a" true}', {"a": True}),
        ("{a: 1, $b: 'x'}", {"a": 1, "$b": "x"}),
        ('{“a”: “say "hi"”}', {"a": 'say "hi"'}),
        ("[,1]", [1]),
    ],
)
def test_small_syntax_errors_are_repaired(text, value):
    """The text must contain a single value and no other text."""
    assert reading(text, repairs=True) == value
    assert reading(text, repairs=False) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(1, 2)", [1, 2]),
        ("((1, 'a'),)", [[1, "a"]]),
        ("('a')", "a"),
        ("[1_000, +5, .5, -.5, 5., 1e3]", [1000, 5, 0.5, -0.5, 5.0, 1000.0]),
        ("{'a': True, 5: None} # so", {"a": True, "5": None}),
        ("['it\\'s', '\\x41\\U0001f600', '\\ud83d\\ude00', '\\d']", ["it's", "A😀", "😀", "\\d"]),
        ('[1, // one\n /* "two" */ 2,]', [1, 2]),
    ],
)
def test_python_and_javascript_notation_is_accepted(text, value):
    """Numbers, escapes and comments of Python and JavaScript are accepted if they are unambiguous."""
    assert reading(text, repairs=False) == value


@given(st.text(alphabet="{}[]()'\"“”:,. \nab1\\e-_#/", max_size=60))
@settings(max_examples=400)
def test_any_lenient_text_is_parsed_or_rejected(text):
    """Any text is parsed or rejected, and each parsed value can be written as JSON."""
    found = reading(text, repairs=True)
    assert json.loads(json.dumps(found)) == found
