"""References to inputs and outputs are replaced by values that keep their types."""

import pytest

from actgent import ConfigurationError
from actgent.agents.pipelines.step_output_references import NoValue, fill, parse, references_in

VALUES = {"find": {"urls": ["http://a", "http://b"], "n": 3, "none": None}, "topic": "tea", "flag": False}


@pytest.mark.parametrize(
    ("answer", "filled"),
    [
        ("Find {topic}.", "Find tea."),
        ("{find.urls.0} and {find.urls.1}", "http://a and http://b"),
        ("{find.n}", 3),
        ("{flag}", False),
        ("n={find.n} {flag}", "n=3 false"),
        ("{find.urls}", ["http://a", "http://b"]),
        ("all: {find.urls}", 'all: ["http://a", "http://b"]'),
        ("{find.none}", None),
        ("[{find.none}]", "[]"),
        ("{find.other?}", None),
        ("[{other?}]", "[]"),
        ("{{topic}}", "{topic}"),
        ("a {{find.n}} b {find.n}", "a {find.n} b 3"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("{ topic } {} {1}", "{ topic } {} {1}"),
        (
            {"url": "{find.urls.0}", "n": "{find.n}", "k": [1, "{flag}"]},
            {"url": "http://a", "n": 3, "k": [1, False]},
        ),
    ],
)
def test_references_are_replaced_by_values(answer, filled):
    """A lone reference keeps the type of its value, also inside structures. In text its value becomes text, and other braces stay."""
    assert fill(answer, VALUES) == filled
    assert type(fill(answer, VALUES)) is type(filled)


def test_braces_in_a_value_are_not_a_reference():
    """Inserted values are not parsed again."""
    assert fill("{a} {b}", {"a": "{b}", "b": "{a}"}) == "{b} {a}"


@pytest.mark.parametrize(
    "answer", ["{find.urls.2}", "x {find.n.deep}", "{nothing}", {"a": ["{find.urls.x}"]}]
)
def test_missing_reference_is_reported_with_its_path(answer):
    """A reference without a value raises `NoValue` with its path."""
    with pytest.raises(NoValue, match=r"the value .* does not exist"):
        fill(answer, VALUES)


def test_all_references_of_a_structure_are_found():
    """Plain text is not a reference."""
    found = [str(each) for each in references_in({"a": "{x.y} {{z}}", "b": ["{w?}", 3]})]
    assert found == ["x.y", "w"]


@pytest.mark.parametrize("text", ["", "a.", "1a", "a b", "{a}", None])
def test_invalid_reference_is_rejected(text):
    """In a condition, a reference has no braces."""
    with pytest.raises(ConfigurationError, match="a reference must be"):
        parse(text)


@pytest.mark.parametrize("place", ["2", "9" * 5_000, "\u0661", "-1"])
def test_index_outside_of_a_list_has_no_value(place):
    """An index outside of a list has no value. An optional reference then gives None."""
    assert fill(f"{{find.urls.{place}?}}", VALUES) in (None, f"{{find.urls.{place}?}}")
    with pytest.raises((NoValue, ConfigurationError)):
        parse(f"find.urls.{place}").value(VALUES)
