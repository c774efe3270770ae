"""Conditions of steps are functions of inputs and outputs."""

import json

import pytest
from hypothesis import given, strategies as st

from actgent import ConfigurationError, When
from actgent.agents.pipelines.step_output_references import NoValue

VALUES = {
    "find": {"url": "http://a", "score": 0.7, "tags": ["x", "y"], "none": None, "sub": {"k": 1}},
    "text": "words",
    "void": {"list": [], "text": "", "object": {}, "zero": 0, "false": False},
}


@pytest.mark.parametrize(
    ("condition", "held"),
    [
        (When.exists("find"), True),
        (When.exists("find.url"), True),
        (When.exists("find.tags.1"), True),
        (When.exists("find.tags.2"), False),
        (When.exists("find.none"), False),
        (When.exists("find.url.x"), False),
        (When.exists("other"), False),
        (When.exists("void.false"), True),
        (When.greater("find.score", 0.5), True),
        (When.greater("find.score", 0.7), False),
        (When.greater("other.score", 0), False),
        (When.greater("text", "apples"), True),
        (When.less("find.score", 1), True),
        (When.less("find.score", 0.7), False),
        (When.less("find.none", 9), False),
        (When.equal("text", "words"), True),
        (When.equal("find.sub", {"k": 1}), True),
        (When.equal("find.sub.k", 1.0), True),
        (When.equal("find.sub.k", True), False),
        (When.equal("find.sub.k", "1"), False),
        (When.equal("void.false", 0), False),
        (When.equal("find.sub.k", "{find.sub.k}"), True),
        (When.contains("find.tags", "x"), True),
        (When.contains("find.tags", "z"), False),
        (When.contains("find.url", "http"), True),
        (When.contains("find.url", 4), False),
        (When.contains("find", "score"), True),
        (When.contains("find.score", 0), False),
        (When.contains("other", "x"), False),
        (When.empty("void.list"), True),
        (When.empty("void.text"), True),
        (When.empty("void.object"), True),
        (When.empty("void.zero"), False),
        (When.empty("other"), True),
        (When.empty("find.tags"), False),
        (When.exists("find") & When.exists("other"), False),
        (When.exists("find") & When.exists("text"), True),
        (When.exists("find") | When.exists("other"), True),
        (When.exists("some") | When.exists("other"), False),
        (~When.exists("other"), True),
        (~~When.exists("other"), False),
        (~(When.exists("find") | When.exists("other")), False),
    ],
)
def test_condition_results(condition, held):
    """Cases: existing and missing values of any type, before and after saving to a file."""
    assert condition.holds(VALUES) is held
    assert When.from_data(json.loads(json.dumps(condition.to_data()))) == condition


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (When.greater("text", 3), "greater: text is a text and cannot be compared with a number"),
        (When.less("find.tags", 3), "less: find.tags is a list and cannot be compared with a number"),
        (
            When.greater("find.score", True),
            "find.score is a number and cannot be compared with a truth value",
        ),
        (When.less("find.score", "{nowhere.at.all}"), "the value nowhere.at.all does not exist"),
    ],
)
def test_condition_on_incomparable_values_raises(condition, expected):
    """A comparison of different types raises an error, because it would otherwise always be false."""
    with pytest.raises(NoValue, match=expected):
        condition.holds(VALUES)


def test_condition_text_is_readable():
    """`str()` of a condition is the text for drawings and reasons."""
    both = (When.exists("a") | When.less("b.c", 2)) & ~When.empty("d")
    assert str(both) == "(a exists or b.c < 2) and not (d is empty)"
    assert str(When.contains("a", "x")) == "a contains 'x'"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, "an object with one key"),
        ("exists", "an object with one key"),
        ({"exist": "a"}, "did you mean 'exists'?"),
        ({"exists": 3}, "a reference must be"),
        ({"exists": "a..b"}, "a reference must be"),
        ({"greater": "a"}, "a list of two items"),
        ({"greater": ["a", 1, 2]}, "a list of two items"),
        ({"and": []}, "at least one"),
        ({"or": {"exists": "a"}}, "a list of conditions"),
        ({"not": []}, "an object with one key"),
    ],
)
def test_invalid_condition_is_rejected(data, expected):
    """The error suggests a valid condition."""
    with pytest.raises(ConfigurationError, match=expected):
        When.from_data(data)


def test_python_operators_cannot_join_conditions():
    """The truth value of a condition raises an error, because `a and b` would silently be `b`."""
    with pytest.raises(ConfigurationError, match="with the operators &"):
        bool(When.exists("a"))
    with pytest.raises(ConfigurationError, match="needs conditions"):
        When.all_of(When.exists("a"), "b")


names = st.sampled_from(["a", "b", "c.d"])
plain = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.text(max_size=3), st.lists(st.integers(0, 2))
)
leaves = st.one_of(
    st.builds(When.exists, names),
    st.builds(When.empty, names),
    st.builds(When.equal, names, plain),
    st.builds(When.contains, names, plain),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(When.__invert__),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: When.all_of(*some)),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: When.any_of(*some)),
    ),
    max_leaves=8,
)


@given(conditions, st.dictionaries(st.sampled_from("abc"), plain))
def test_any_condition_survives_a_file_and_has_an_opposite(condition, values):
    """A condition decides the same after a save and a load. Its negation decides the opposite."""
    again = When.from_data(json.loads(json.dumps(condition.to_data())))
    assert again.holds(values) is condition.holds(values)
    assert (~condition).holds(values) is not condition.holds(values)


@given(leaves, leaves, st.dictionaries(st.sampled_from("abc"), plain))
def test_exclusive_conditions_never_hold_together(one, other, values):
    """Conditions that exclude each other never both hold. A wrong result would reject a step as unreachable."""
    if one.excludes(other):
        assert not (one.holds(values) and other.holds(values))
