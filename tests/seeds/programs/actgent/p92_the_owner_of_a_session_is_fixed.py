"""The owner is set when the session is created, represents the user that owns the conversation, and does not change.

Document: Message Flow Overview, Session Owner.
"""

import trio

from actgent import BareAgent, ScriptedLLM, WrongOwner


async def main() -> None:
    async with BareAgent("clerk", llm=ScriptedLLM(["Hello."], repeat=True)) as agent:
        session = await agent.create_session("ada", "Hello", session_id="s-1")
        await session.chat("I am Bob.", "bob")
        await session.wait_idle()
        assert (session.owner.name, session.owner.kind) == ("ada", "user")
        assert await agent.ensure_session("ada", "s-1") is session
        try:
            await agent.ensure_session("bob", "s-1")
        except WrongOwner:
            pass
        else:
            raise AssertionError("Bob opened the session of Ada")
        try:
            session.owner = "bob"
        except AttributeError:
            pass
        else:
            raise AssertionError("the owner was changed")
    assert session.owner.name == "ada"


trio.run(main)
