"""`get_tool_documentation(tools)` lists the tools of a dictionary with their signatures and docstrings, for prompts.

Document: Advanced Features, Tool Introspection.

Differs: The function is named `tool_documentation`, because functions of actgent have no `get_`. Write
`tool_documentation(tools)`.
"""

from typing import Any, Dict, Optional, Tuple

from actgent import tool_documentation


def my_custom_tool(state: Dict[str, Any], args: Dict[str, Any]) -> Optional[Tuple[str, Any]]:
    """Custom tool example with proper signature."""
    return None


def bare(state, args):
    return None


lines = tool_documentation({"my_custom_tool": my_custom_tool, "bare": bare}).splitlines()
assert lines[0] == "Available tools:"
assert lines[1] == (
    "- my_custom_tool(state: Dict[str, Any], args: Dict[str, Any]) -> Optional[Tuple[str, Any]]: "
    "Custom tool example with proper signature."
), lines[1]
assert lines[2] == "- bare(state, args): No documentation available", lines[2]
