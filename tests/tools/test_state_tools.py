"""Tools over a session's state, without an agent."""

import pytest

from actgent.errors import ConfigurationError, ToolError
from actgent.state.session_state import Store
from actgent.tools.state_tools import StateTool, parse_changes, takes_state
from actgent.tools.tool_interface import ToolContext


def keep(state, args):
    return ("kept", args)


async def keep_later(_state, _args):
    return [("kept", 1), ("more", 2)]


def only_state(state):
    """Take one parameter too few."""


def other_names(a, b):
    """Take two parameters with other names."""


def one_more(state, args, more):
    """Take one parameter too many."""


@pytest.mark.parametrize("func", [keep, keep_later])
def test_state_function_has_two_parameters(func):
    """The two parameters are `state` and `args`, with or without a leading underscore."""
    assert takes_state(func)


@pytest.mark.parametrize("func", [only_state, other_names, one_more, "keep", dict])
def test_function_with_other_parameters_is_rejected(func):
    assert not takes_state(func)
    with pytest.raises(ConfigurationError, match=r"\(state, args\)"):
        StateTool("keep", "Keep.", func)


@pytest.mark.parametrize(
    ("returned", "changes"),
    [
        (None, {}),
        ([], {}),
        (("a", 1), {"a": 1}),
        (("a", None), {"a": None}),
        ([("a", 1), ("b", 2)], {"a": 1, "b": 2}),
        ((("a", 1), ("b", 2)), {"a": 1, "b": 2}),
    ],
)
def test_state_function_returns_pairs_or_none(returned, changes):
    """Case 1: a function returns a pair, several pairs, or None."""
    assert parse_changes(returned) == changes


@pytest.mark.parametrize(
    "returned",
    ["ab", 1, {"a": 1}, ("a",), ("a", 1, 2), (1, 2), [("a", 1), None], [(1, 2)], ("_goal", 1), [("_x", 1)]],
)
def test_other_results_of_a_state_function_are_errors(returned):
    """Case 1 (want): any other value is an error. Keys with a leading underscore are reserved for the framework."""
    with pytest.raises(ToolError):
        parse_changes(returned)


@pytest.mark.parametrize(
    ("func", "state"), [(keep, {"kept": {"n": 1}}), (keep_later, {"kept": 1, "more": 2})]
)
async def test_returned_pairs_are_stored(func, state):
    """The store and the model get the pairs. A sync function runs in a thread."""
    store = Store()
    tool = StateTool("keep", "Keep.", func)
    assert await tool.execute({"n": 1}, ToolContext(state=store)) == state
    assert dict(store) == state


async def test_state_tool_works_outside_of_an_agent():
    """Without a store the state is empty, and the result is the changes."""
    assert await StateTool("keep", "Keep.", keep).execute({}, ToolContext()) == {"kept": {}}
