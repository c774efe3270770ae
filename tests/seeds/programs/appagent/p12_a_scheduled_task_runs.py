"""A scheduled task runs at its time, and the agent executes it like a message of the user.

Document: Mode-Based Tool Access Control, Universal Tools (scheduling).
"""

import trio
import trio.testing

from actgent import BareAgent, Modes, ScriptedLLM


async def main() -> None:
    texts = []

    def model(chat):
        texts.append(chat.messages[-1].parts[0].text)
        return "The report is written."

    async with BareAgent("app", llm=ScriptedLLM(model), modes=Modes()) as app:
        session = await app.create_session("ada")
        answers, done = [], trio.Event()

        @session.on_conversation
        def keep(reply) -> None:
            answers.append(str(reply))
            done.set()

        await session.schedule("write the report", after=0.02)
        assert answers == []
        with trio.fail_after(5):
            await done.wait()
        await session.wait_idle()
    assert answers == ["The report is written."]
    assert "write the report" in texts[0]


trio.run(main)
