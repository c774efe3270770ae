"""The reasoning loop ends after `max_iterations` model calls, 10 by default, with `MaxIterationsError`.

Document: Core Components, 1. Agent (Iteration control); Error Handling Strategy.

Differs: All limits raise one error, `LimitReached`. Write `except LimitReached`.
"""

import itertools
import json

from actgent import LimitReached, Limits, ScriptedLLM, StepsAgent, tool

numbers = itertools.count()


@tool
def look(place: int) -> str:
    """Look at a place."""
    return f"empty: {place}"


def endless(chat) -> str:
    return json.dumps(
        {"tool_calls": [{"id": "1", "tool_name": "look", "parameters": {"place": next(numbers)}}]}
    )


for options, calls in (
    ({}, 10),
    ({"max_iterations": 3}, 3),
    ({"max_iterations": 3, "limits": Limits(model_calls=10)}, 3),
    ({"limits": Limits(model_calls=2)}, 2),
):
    llm = ScriptedLLM(endless)
    agent = StepsAgent("clerk", llm=llm, tools=[look], **options)
    try:
        agent.run_sync("Look for ever.")
    except LimitReached as error:
        assert str(calls) in str(error), error
    else:
        raise AssertionError("it ended")
    assert len(llm.chats) == calls, (options, len(llm.chats))
