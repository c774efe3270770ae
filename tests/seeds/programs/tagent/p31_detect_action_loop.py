"""`detect_action_loop(recent_actions, max_recent=3)` finds actions that repeat, and a run that is stuck in a loop is ended.

Document: Advanced Features, Error Recovery and Loop Detection.
"""

import json

from actgent import ScriptedLLM, detect_action_loop, run_agent_sync

assert not detect_action_loop([])
assert not detect_action_loop(["plan"])
assert detect_action_loop(["plan", "plan"])
assert not detect_action_loop(["plan", "execute"])
assert detect_action_loop(["plan", "execute", "execute"], max_recent=3)
assert not detect_action_loop(["execute", "execute", "plan"], 3)


def look(state, args):
    """Look at the same place."""
    return ("place", "empty")


model = ScriptedLLM([json.dumps({"action": "execute", "params": {"tool": "look", "args": {}}})], repeat=True)
result = run_agent_sync("Find it.", model, tools={"look": look})
assert not result.achieved
assert result.status == "incomplete"
assert len(model.chats) < 20
