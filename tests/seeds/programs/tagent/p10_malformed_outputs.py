"""Malformed outputs are handled gracefully: the request is retried with the error, and the final result has all partial results.

Document: Core Architecture Principles, Structured Output Integration (Fallback Mechanisms).
"""

import json

from actgent import ParseError, ScriptedLLM, run_agent_sync


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", 1642)


FOUND = json.dumps({"action": "execute", "params": {"tool": "lookup", "args": {}}})
DONE = json.dumps({"action": "evaluate", "params": {"achieved": True, "answer": "1642 m"}})

model = ScriptedLLM([FOUND, '{"action": "evaluate", "params": ', DONE])
result = run_agent_sync("How deep?", model, tools={"lookup": lookup})
assert (result.achieved, len(model.chats)) == (True, 3)

cut = run_agent_sync("How deep?", ScriptedLLM([FOUND, "no", "JSON", "here"]), tools={"lookup": lookup})
assert (cut.status, cut.achieved) == ("error", False)
assert isinstance(cut.failure, ParseError)
assert cut.raw_data["depth"] == 1642
assert cut.used_tools == ("lookup",)
assert [each.status for each in cut.tool_results] == ["success"]
