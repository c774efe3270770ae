"""Errors while the configuration is loaded are caught: `process` returns a result with the status `error`.

Document: Error Handling, Initialization.
"""

import trio

from actgent import PlanAgent, ScriptedLLM

llm = ScriptedLLM(["never asked"])


async def find_deps(session):
    raise FileNotFoundError("no configuration of the thread")


def configure(session):
    broken.configure(session, model="hughe")


async def main() -> None:
    for art, expected in (
        (PlanAgent("guide", llm=llm, deps=find_deps), "no configuration of the thread"),
        (broken, "hughe"),
    ):
        async with art:
            result = await art.process("Hello?")
        assert (result.status, result.reply) == ("error", None)
        assert expected in str(result.error)
    assert llm.chats == []


broken = PlanAgent("guide", llm=llm)
broken.on_session(configure)
trio.run(main)
