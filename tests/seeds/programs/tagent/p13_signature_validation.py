"""Signatures of tools are validated when they are registered: `(state, args) -> Optional[Tuple[str, Any]]`.

Document: Tool Integration, Tool Discovery Process, 3.; Core Architecture Principles (Signature Validation).
"""

from pathlib import Path

from actgent import ConfigurationError, ScriptedLLM, discover, run_agent_sync

Path("tagent.tools.py").write_text('''
def good(state, args):
    """Work."""
    return ("a", 1)

def bad(data):
    """Have another signature."""

def _private(state, args):
    """Not be a tool."""
''')
Path("broken.tools.py").write_text("def good(state, args:\n")
found = discover(".")
assert [tool.name for tool in found.tools] == ["good"]
assert any("bad" in str(each) for each in found.skipped)
assert any("broken" in str(each) for each in found.problems)


def three(state, args, *more):
    """Take anything."""


model = ScriptedLLM(["never asked"])
for wrong in ({"three": three}, {"text": "not a function"}, {"": lambda state, args: None}):
    try:
        run_agent_sync("Work.", model, tools=wrong)
    except ConfigurationError:
        continue
    raise AssertionError(f"{wrong} was taken")
assert model.chats == []
