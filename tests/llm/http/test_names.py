"""Tool names and call ids on the wire."""

import re

from hypothesis import given, strategies as st

from actgent.llm.http.wire_encoding import names_by_provider_name, provider_call_id, provider_tool_name
from actgent.messages import ToolSpec

ALLOWED = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
NAMES = st.text(min_size=0, max_size=90) | st.from_regex(r"[a-zA-Z0-9_.-]{1,70}", fullmatch=True)


@given(st.lists(NAMES, unique=True, max_size=20))
def test_wire_names_of_tools_are_valid_and_distinct(names):
    """Any set of tool names maps to distinct names that providers accept."""
    wired = [provider_tool_name(name) for name in names]
    assert all(ALLOWED.match(name) for name in wired)
    assert len(set(wired)) == len(names)


def test_tool_with_the_wire_name_of_another_is_renamed():
    """A tool whose name equals another tool's wire name gets a different wire name."""
    taken = provider_tool_name("math.add")
    assert provider_tool_name(taken) != taken
    tools = [ToolSpec(name, "", {}) for name in ("math.add", taken, "plain")]
    assert set(names_by_provider_name(tools).values()) == {"math.add", taken, "plain"}
    assert names_by_provider_name(tools)["plain"] == "plain"


@given(NAMES)
def test_wire_ids_fit_the_shortest_limit(call_id):
    """Call ids fit the shortest limit. The same id always has the same wire form."""
    assert ALLOWED.match(provider_call_id(call_id))
    assert len(provider_call_id(call_id)) <= 40
    assert provider_call_id(call_id) == provider_call_id(call_id)


def test_valid_ids_are_unchanged():
    """Valid ids of actgent and of providers are sent unchanged."""
    for call_id in ("call_1", "toolu_01LtHJmixrs9NcWQkK8hu8hj", "a1b2c3d4e5f6-00000001"):
        assert provider_call_id(call_id) == call_id
