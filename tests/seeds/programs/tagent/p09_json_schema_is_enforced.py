"""The prompt has the JSON schema of a decision, and an answer with another structure is not executed.

Document: Core Architecture Principles, Structured Output Integration (JSON Schema); Structured Output Flow, 2. and 4.
"""

import json

from actgent import ScriptedLLM, run_agent_sync

ran = []


def sell(state, args):
    """Sell one."""
    ran.append(args)


WRONG = [{"tool": "sell"}, {"action": "sel", "params": {"tool": "sell"}}]
RIGHT = [
    {"action": "execute", "params": {"tool": "sell", "args": {"n": 1}}},
    {"action": "evaluate", "params": {"achieved": True, "answer": "sold"}},
]
model = ScriptedLLM([json.dumps(each) for each in (*WRONG, *RIGHT)])
result = run_agent_sync("Sell one.", model, tools={"sell": sell})
first = f"{model.chats[0].system} {model.chats[0].messages}"
for word in ("action", "params", "reasoning", "plan", "execute", "evaluate", "JSON"):
    assert word in first, word
assert ran == [{"n": 1}]
assert result.achieved
