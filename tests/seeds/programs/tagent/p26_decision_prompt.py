"""The prompt of a decision has the goal, the current state, and the tools that can be called.

Document: Structured Output Flow, 1. Prompt Construction; Main Agent Loop (build_decision_prompt).
"""

import json

from actgent import ScriptedLLM, run_agent_sync


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth_of_baikal", 1642)


decisions = [
    {"action": "execute", "params": {"tool": "lookup", "args": {}}},
    {"action": "evaluate", "params": {"achieved": True, "answer": "1642 m"}},
]
model = ScriptedLLM([json.dumps(each) for each in decisions])
run_agent_sync("How deep is Lake Baikal?", model, tools={"lookup": lookup})
first, second = (f"{chat.system} {chat.messages} {chat.tools}" for chat in model.chats)
for part in ("How deep is Lake Baikal?", "lookup", "Look up the depth of a lake in metres."):
    assert part in first, part
    assert part in second, part
assert "depth_of_baikal" not in first
assert "depth_of_baikal" in second
assert "1642" in second
