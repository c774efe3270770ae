"""The loop makes at most `max_iterations` iterations, 20 by default, and then returns the partial results.

Document: Main Agent Loop (Iteration Control).
"""

import itertools
import json

from actgent import ScriptedLLM, run_agent_sync

numbers = itertools.count()


def look(state, args):
    """Look at the next place."""
    return (f"place_{args['n']}", "empty")


def endless(chat) -> str:
    return json.dumps({"action": "execute", "params": {"tool": "look", "args": {"n": next(numbers)}}})


for options, calls in (({}, 20), ({"max_iterations": 6}, 6)):
    model = ScriptedLLM(endless)
    result = run_agent_sync("Find it.", model, tools={"look": look}, **options)
    assert len(model.chats) == calls
    assert (result.achieved, result.max_iterations) == (False, calls)
    assert len([key for key in result.raw_data if key.startswith("place_")]) >= calls - 3
    assert result.status in ("incomplete", "error")
