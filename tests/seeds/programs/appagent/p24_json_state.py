"""The agent's state is JSON, for simple access in memory.

Document: State Management, Agent State.
"""

import json

import trio

from actgent import BareAgent, Modes, NotSerializable, ScriptedLLM, open_runtime


async def main() -> None:
    async with open_runtime(journal="memory:") as runtime:
        app = await runtime.start(BareAgent("app", llm=ScriptedLLM([]), modes=Modes()))
        session = await app.create_session("ada")
        settings = {"language": "en", "operators": ["ada", "bob"], "limit": 2.5, "debug": False, "note": None}
        session.state.dispatch(("settings", settings))
        assert session.state["settings"] == settings
        assert session.state["settings"]["operators"][1] == "bob"
        assert json.loads(json.dumps(dict(session.state), default=list))["settings"]["language"] == "en"
        try:
            session.state.dispatch(("settings", object()))
        except NotSerializable as error:
            assert "settings" in str(error)
        else:
            raise AssertionError("a value that JSON cannot hold was taken")
        assert session.state["settings"] == settings


trio.run(main)
