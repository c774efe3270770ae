"""Tools over a session's state, by themselves."""

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
    """One parameter too few."""


def other_names(a, b):
    """Two parameters that mean something else."""


def one_more(state, args, more):
    """One parameter too many."""


@pytest.mark.parametrize("func", [keep, keep_later])
def test_functions_of_the_state(func):
    """Two parameters, `state` and `args`, are the form; an underscore before them is no matter."""
    assert takes_state(func)


@pytest.mark.parametrize("func", [only_state, other_names, one_more, "keep", dict])
def test_other_functions(func):
    """What has another form is not called in this one."""
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
def test_changes(returned, changes):
    """Case 1: a pair, several, or None."""
    assert parse_changes(returned) == changes


@pytest.mark.parametrize(
    "returned",
    ["ab", 1, {"a": 1}, ("a",), ("a", 1, 2), (1, 2), [("a", 1), None], [(1, 2)], ("_goal", 1), [("_x", 1)]],
)
def test_no_changes(returned):
    """Case 1 (want): anything else is an error; a key with an underscore belongs to the framework."""
    with pytest.raises(ToolError):
        parse_changes(returned)


@pytest.mark.parametrize(
    ("func", "state"), [(keep, {"kept": {"n": 1}}), (keep_later, {"kept": 1, "more": 2})]
)
async def test_returned_pairs_are_stored(func, state):
    """The pairs go into the store, and to the model; a sync function runs in a thread."""
    store = Store()
    tool = StateTool("keep", "Keep.", func)
    assert await tool.execute({"n": 1}, ToolContext(state=store)) == state
    assert dict(store) == state


async def test_outside_of_an_agent():
    """Without a store the state is empty, and the changes are the result."""
    assert await StateTool("keep", "Keep.", keep).execute({}, ToolContext()) == {"kept": {}}
