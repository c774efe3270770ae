"""Routing: the agent `desk` chooses a specialist for each message, and the specialist answers.

A small model is enough for routing. Each specialist has a separate model, prompt and tools. The specialists start together
with the router, and remember the conversation while its session is open.
"""

import json

import trio

from actgent import BareAgent, Instruction, RouterAgent, ScriptedLLM


def to(action: str) -> str:
    """Answer as a routing model would: name the intent of the message."""
    return json.dumps({"top_level_intent": "ACTION", "second_level_intent": action, "data": {}})


def front_desk() -> RouterAgent:
    billing = BareAgent("billing", role="the billing office", llm=ScriptedLLM(["Invoice 7 is paid."]))
    repairs = BareAgent("repairs", role="the repair shop", llm=ScriptedLLM(["We come at noon."]))
    return RouterAgent(
        "front desk",
        llm=ScriptedLLM([to("BILLING"), to("REPAIRS"), "You are welcome!"]),
        instructions=[
            Instruction("BILLING", "questions about invoices and payments"),
            Instruction("REPAIRS", "something is broken"),
        ],
        routes={"BILLING": billing, "REPAIRS": repairs},
    )


async def main() -> None:
    desk = front_desk()
    async with desk:
        session = await desk.create_session("ada")
        session.on_routing(lambda route: print("  goes to", route.action))
        session.on_conversation(lambda reply: print("  answer:", reply))
        for line in ("Is invoice 7 paid?", "My boiler is leaking.", "Thank you!"):
            print(line)
            await session.chat(line)
            await session.wait_idle()


if __name__ == "__main__":
    trio.run(main)
