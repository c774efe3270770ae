"""A decision has an action, params and a reasoning. Params and reasoning may be missing.

Document: Structured Output System (StructuredResponse).
"""

import json

from actgent import ScriptedLLM, run_agent_sync

seen = []


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    seen.append(dict(args))
    return ("depth", 1642)


decisions = [
    {
        "action": "execute",
        "params": {"tool": "lookup", "args": {"name": "Baikal"}},
        "reasoning": "It was asked.",
    },
    {"action": "execute", "params": {"tool": "lookup"}},
    {"action": "evaluate", "params": {"achieved": True, "answer": "1642 m"}, "reasoning": "It is known."},
]
model = ScriptedLLM([json.dumps(each) for each in decisions])
result = run_agent_sync("How deep?", model, tools={"lookup": lookup})
assert seen == [{"name": "Baikal"}, {}]
assert result.achieved
for word in ('"action"', '"params"', '"reasoning"'):
    assert word in f"{model.chats[0].system} {model.chats[0].messages}"
