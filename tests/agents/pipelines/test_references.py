"""References read inputs and outputs, and keep their types."""

import pytest

from actgent import ConfigurationError
from actgent.agents.pipelines.references import NoValue, fill, parse, references_in

VALUES = {"find": {"urls": ["http://a", "http://b"], "n": 3, "none": None}, "topic": "tea", "flag": False}


@pytest.mark.parametrize(
    ("said", "filled"),
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
def test_what_references_become(said, filled):
    """One alone keeps its type, also deep in a structure; among words each becomes text, and other braces stay."""
    assert fill(said, VALUES) == filled
    assert type(fill(said, VALUES)) is type(filled)


def test_what_an_output_says_is_no_template():
    """Braces in a value are not looked at again."""
    assert fill("{a} {b}", {"a": "{b}", "b": "{a}"}) == "{b} {a}"


@pytest.mark.parametrize("said", ["{find.urls.2}", "x {find.n.deep}", "{nothing}", {"a": ["{find.urls.x}"]}])
def test_missing_reference_is_reported_with_its_path(said):
    """With the place."""
    with pytest.raises(NoValue, match=r"no output .* exists"):
        fill(said, VALUES)


def test_what_is_read():
    """All references of a structure, and not those that are text."""
    found = [str(each) for each in references_in({"a": "{x.y} {{z}}", "b": ["{w?}", 3]})]
    assert found == ["x.y", "w"]


@pytest.mark.parametrize("text", ["", "a.", "1a", "a b", "{a}", None])
def test_what_is_no_reference(text):
    """In a condition it stands without braces."""
    with pytest.raises(ConfigurationError, match="a reference is"):
        parse(text)


@pytest.mark.parametrize("place", ["2", "9" * 5_000, "\u0661", "-1"])
def test_a_place_that_no_list_has(place):
    """There is no value, whatever stands for a number; where it may be missing it is None."""
    assert fill(f"{{find.urls.{place}?}}", VALUES) in (None, f"{{find.urls.{place}?}}")
    with pytest.raises((NoValue, ConfigurationError)):
        parse(f"find.urls.{place}").value(VALUES)
