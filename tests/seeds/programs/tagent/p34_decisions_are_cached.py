"""Model calls are minimized: decisions are cached, so that the same goal in the same state needs one model call.

Document: Production Considerations, Performance Optimization (LLM Call Minimization).
"""

import json

from actgent import CachedModel, ScriptedLLM, run_agent_sync


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", 1642)


decisions = [
    {"action": "execute", "params": {"tool": "lookup", "args": {}}},
    {"action": "evaluate", "params": {"achieved": True, "answer": "1642 m"}},
]
inner = ScriptedLLM([json.dumps(each) for each in decisions] * 2)
model = CachedModel(inner)
for _ in range(3):
    assert run_agent_sync("How deep?", model, tools={"lookup": lookup}).achieved
assert len(inner.chats) == 2
run_agent_sync("How deep is the other one?", model, tools={"lookup": lookup})
assert len(inner.chats) == 4
