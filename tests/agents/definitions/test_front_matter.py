"""Front matter: a safe subset of YAML 1.2, with the line of each value."""

import time

import pytest
from hypothesis import given, strategies as st

from actgent.definitions.front_matter import MAX_YAML_CHARS, read_yaml, split_front_matter
from actgent.errors import InvalidFile


def values(text):
    return dict(read_yaml(text, name="x.md").values)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("off", "off"),
        ("true", True),
        ("False", False),
        ("tRUE", "tRUE"),
        ("~", None),
        ("", None),
        ("null", None),
        ("'null'", "null"),
        ("0o17", 15),
        ("017", 17),
        ("0x1F", 31),
        ("-1", -1),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        ("1_000", "1_000"),
        ("[1, {b: c}]", [1, {"b": "c"}]),
        ('"a\\u00e9"', "aé"),
    ],
)
def test_scalars_are_those_of_the_core_schema(text, value):
    """Scalars follow the YAML 1.2 core schema: `no`, `1:30` and dates stay texts."""
    found = values(f"a: {text}")["a"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('!!python/object/apply:os.system ["touch /tmp/pwn"]', 1),
        ("a: 1\nb: !!set {a, b}", 2),
        ("a: &a 1\nb: *a", 1),
        ("&a [*a]", 1),
        ("a: 1\n\na: 2", 3),
        ("a: {b: 1,\n b: 2}", 2),
        ("a: .nan", 1),
        ("a: 1e999", 1),
        ("\tkey: v", 1),
        ("{a: 1", 1),
        ("a: 1\n? [x]\n: 1", 2),
        ("a: 1\n<<: {b: 1}", 2),
        ("%YAML 1.1\n---\na: 1", 2),
        ("a: 1\n---\nb: 1", 2),
        ("- a", 1),
        ("text", 1),
        ('a: "\\ud800"', 1),
        ('a: "\\0"', 1),
        ("a: " + "9" * 400, 1),
        ("a: " + "[" * 30 + "]" * 30, 1),
    ],
)
def test_unsupported_yaml_is_an_error_with_its_line(text, line):
    """Cases: tags, anchors, merge keys, repeated keys, roots other than an object, and excessive depth."""
    with pytest.raises(InvalidFile) as caught:
        values(text)
    assert caught.value.line == line


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * (MAX_YAML_CHARS - 1),
        "{a: " * 5_000,
        "- " * 10_000,
        "? " * 10_000,
        "a0: &a0 [x]\n" + "\n".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 30)),
        "\n".join(f"b{i}: {{<<: *a}}" for i in range(10_000)),
        "'" * 30_001,
    ],
)
def test_deep_and_repeated_texts_raise_an_error_quickly(text):
    """Deep, repeated and long texts raise an error. Expanding them would take minutes, so the bound of 10 seconds is coarse."""
    started = time.process_time()
    with pytest.raises(InvalidFile):
        values(text)
    assert time.process_time() - started < 10


@given(st.text(alphabet=" \n\t:-?[]{}#&*!|>'\"%@`,ab0.~\\<x", max_size=60))
def test_any_text_is_a_value_or_an_error_with_a_line(text):
    """Any text gives an object or an `InvalidFile` with a line of the text."""
    try:
        found, line = values(text), 1
    except InvalidFile as error:
        found, line = {}, error.line
    assert isinstance(found, dict)
    assert 1 <= line <= text.count("\n") + 2


def test_a_document_has_line_numbers_of_its_values():
    """Line numbers refer to the file, also for items and inner keys. The body is the text after the front matter."""
    text = "---\nname: x\nllm:\n  model: m\ntools:\n- a\n- b\n---\n\nBody --- here\n---\n"
    document = split_front_matter(text, name="x.md")
    assert document.body == "Body --- here\n---"
    assert [document.line(p) for p in (("name",), ("llm", "model"), ("tools", 1), ("llm", "no"))] == [
        2,
        4,
        7,
        3,
    ]


@pytest.mark.parametrize(
    "text", ["", "name: x", "---\nname: x", " ---\nname: x\n---\n", "---\nname: x\n --- \n"]
)
def test_front_matter_has_a_beginning_and_an_end(text):
    """A file without front matter or with unclosed front matter is rejected."""
    with pytest.raises(InvalidFile, match="front matter is"):
        split_front_matter(text, name="x.md")


def test_a_key_that_may_be_a_secret_is_not_quoted():
    """An error does not quote a key that resembles a provider's API key."""
    with pytest.raises(InvalidFile) as caught:
        values("sk-abc0123456789def: 1\nsk-abc0123456789def: 2")
    assert "0123456789" not in str(caught.value)


def test_recorded_yaml_ends_as_expected(recorded_rows):
    """The `yaml` cases of ../shared/data give plain values or an error with a line."""
    rows = [row for row in recorded_rows("security_cases.jsonl") if row["area"] == "yaml" and row["payload"]]
    assert rows
    for row in rows:
        for text in (row["payload"], "a:\n  " + row["payload"].replace("\n", "\n  ")):
            try:
                found, line = values(text), 1
            except InvalidFile as error:
                found, line = {}, error.line
            assert {type(value) for value in found.values()} <= {str, int, float, bool, list, dict}
            assert line >= 1
