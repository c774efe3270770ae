"""The state is a dictionary that is easily serialized, stored and retrieved.

Document: State Structure (Dictionary-based for easy serialization); Production Considerations (State Serialization).
"""

import json

import trio

from actgent import GoalAgent, ScriptedLLM, Store, open_runtime

store = Store({"lakes": [{"name": "Baikal", "depth": 1642}]})
written = json.dumps(dict(store))
assert dict(Store(json.loads(written))) == dict(store)


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", {"Baikal": 1642})


def agent() -> GoalAgent:
    decisions = [
        {"action": "execute", "params": {"tool": "lookup", "args": {}}},
        {"action": "evaluate", "params": {"achieved": True, "answer": "1642 m"}},
    ]
    return GoalAgent(
        "guide", llm=ScriptedLLM([json.dumps(each) for each in decisions]), tools={"lookup": lookup}
    )


async def main() -> None:
    async with open_runtime(journal="sqlite:///agents.db") as runtime:
        session = await (guide := await runtime.start(agent())).ensure_session("ada", "s")
        await guide.run_goal("How deep?", session=session)
        before = dict(session.state)
    async with open_runtime(journal="sqlite:///agents.db") as runtime:
        session = await (await runtime.start(agent())).open_session("s")
        assert dict(session.state) == before
        assert session.state["depth"] == {"Baikal": 1642}


trio.run(main)
