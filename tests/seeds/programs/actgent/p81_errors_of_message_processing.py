"""Message processing errors have a handler and recovery: the message fails, and the next messages and other sessions work.

Document: Error Handling.
"""

import trio

from actgent import BareAgent, ConfigurationError, MessageTooLarge, ScriptedLLM, SessionClosed


async def main() -> None:
    async def model(chat):
        if "bad" in str(chat.messages[-1].parts):
            raise RuntimeError("a bug in the model's client")
        return "Fine."

    async with BareAgent("clerk", llm=ScriptedLLM(model), message_bytes=1000) as agent:
        ada, bob = await agent.create_session("ada"), await agent.create_session("bob")
        failures, answers = [], []
        for session in (ada, bob):
            session.on_exception(failures.append)
            session.on_conversation(lambda reply: answers.append(str(reply)))
        await ada.chat("bad")
        await ada.chat("good")
        await bob.chat("good")
        for session in (ada, bob):
            await session.wait_idle()
        for wrong, error in (("", ConfigurationError), ("x" * 2000, MessageTooLarge)):
            try:
                await ada.chat(wrong)
            except error:
                continue
            raise AssertionError(wrong)
        await bob.aclose()
        try:
            await bob.chat("Are you there?")
        except SessionClosed:
            pass
        else:
            raise AssertionError("a closed session took a message")
    assert answers == ["Fine.", "Fine."]
    assert [failure.message_id for failure in failures] == [ada.history[0].id]
    assert "a bug in the model's client" in str(failures[0].error)


trio.run(main)
