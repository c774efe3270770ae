"""Long-term memory is persistent knowledge: a memory of one session is available in a later session of the owner.

Document: Memory and Context Management.
"""

import trio

from actgent import BareAgent, LongTermMemory, ScriptedLLM, ToolCall


def model(chat):
    text = str(chat.messages)
    if "I take my tea without sugar." in text and "Done" not in text and chat.messages[-1].role == "user":
        return ToolCall("remember", {"text": "Ada takes her tea without sugar"})
    return "No sugar." if "without sugar" in text else "I do not know."


async def main() -> None:
    answers = {}
    for life in range(2):  # two processes, one database
        memories = LongTermMemory("sqlite:///memories.db")
        async with BareAgent(
            "clerk", llm=ScriptedLLM(model), long_term_memory=memories, recall_before_answer=True
        ) as clerk:
            if life == 0:
                await clerk.run("I take my tea without sugar.", session=await clerk.create_session("ada"))
                continue
            for owner in ("ada", "bob"):
                session = await clerk.create_session(owner)
                answers[owner] = str(await clerk.run("How much sugar for my tea?", session=session))
    assert answers == {"ada": "No sugar.", "bob": "I do not know."}, answers


trio.run(main)
