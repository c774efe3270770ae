"""The history of the conversation is tracked: each decision gets the previous decisions and results, and the result contains the history.

Document: State Structure (Conversation history tracking for context); Conversation History Management.
"""

import json

from actgent import ScriptedLLM, run_agent_sync


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", 1642)


decisions = [
    {"action": "execute", "params": {"tool": "lookup", "args": {}}, "reasoning": "I begin with the lake"},
    {"action": "evaluate", "params": {"achieved": True, "answer": "1642 m"}},
]
model = ScriptedLLM([json.dumps(each) for each in decisions])
result = run_agent_sync("How deep?", model, tools={"lookup": lookup})
assert "I begin with the lake" in str(model.chats[1].messages)
assert "1642" in str(model.chats[1].messages)
assert result.history[0].text == "How deep?"
assert "I begin with the lake" in result.conversation
assert "USER [1]: How deep?" in result.conversation
