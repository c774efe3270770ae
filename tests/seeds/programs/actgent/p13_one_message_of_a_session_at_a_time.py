"""The inbox processes a session's messages one at a time and in order. Other sessions do not wait for them.

Document: Message Processing Pipeline, Message Processing.
"""

import trio
import trio.testing

from actgent import BareAgent, ScriptedLLM


async def main() -> None:
    running, maximum = {}, {}

    async def model(chat):
        running[chat.session] = running.get(chat.session, 0) + 1
        maximum[chat.session] = max(maximum.get(chat.session, 0), running[chat.session])
        maximum["all"] = max(maximum.get("all", 0), sum(running.values()))
        await trio.testing.wait_all_tasks_blocked()
        running[chat.session] -= 1
        return chat.messages[-1].parts[0].text.upper()

    async with BareAgent("clerk", llm=ScriptedLLM(model)) as agent:
        answers = {}
        for owner in ("ada", "bob"):
            session = await agent.create_session(owner, session_id=owner)
            answers[owner] = []
            session.on_conversation(lambda reply, owner=owner: answers[owner].append(str(reply)))
            for text in ("one", "two", "three"):
                await session.chat(text)
    assert answers == {"ada": ["ONE", "TWO", "THREE"], "bob": ["ONE", "TWO", "THREE"]}
    assert maximum == {"ada": 1, "bob": 1, "all": 2}, maximum


trio.run(main)
