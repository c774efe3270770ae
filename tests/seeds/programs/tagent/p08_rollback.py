"""A problematic change of the state can be rolled back.

Document: Production Considerations, Error Handling (Rollback Mechanisms).
"""

import trio

from actgent import BareAgent, ScriptedLLM, Store, open_runtime

store = Store({"depth": 1})
store.dispatch(lambda state: ("depth", 1642))
store.dispatch(lambda state: ("depth", "broken"))
store.rollback(1)
assert dict(store) == {"depth": 1642}
store.dispatch(lambda state: ("depth", state["depth"] + 1))
assert (store["depth"], store.number) == (1643, 2)


async def main() -> None:
    agent = BareAgent("clerk", llm=ScriptedLLM([]))
    async with open_runtime(journal="sqlite:///agents.db") as runtime:
        session = await (await runtime.start(agent)).ensure_session("ada", "s")
        session.state.dispatch(("depth", 1642))
        session.state.dispatch(("depth", "broken"))
        session.state.rollback(1)
    async with open_runtime(journal="sqlite:///agents.db") as runtime:
        session = await (await runtime.start(BareAgent("clerk", llm=ScriptedLLM([])))).open_session("s")
        assert dict(session.state) == {"depth": 1642}


trio.run(main)
