"""Approvals: a tool call waits for the decision of a person, also across a restart of the process.

The first process requests approvals and exits. The second process could start a week later, and lists the open
approvals. A person approves one payment, edits the second and rejects the third. Small payments need no approval.
"""

import tempfile
from pathlib import Path

import trio

from actgent import (
    Approve,
    BareAgent,
    Edit,
    ModelRequest,
    Reject,
    ScriptedLLM,
    Session,
    ToolCall,
    open_runtime,
    tool,
)
from actgent.messages import ToolResult

SMALL = 100
BILLS = [("paper", 20), ("chairs", 400), ("printer", 900), ("yacht", 90_000)]
PERSON: dict[str, Approve | Edit | Reject] = {
    "chairs": Approve(),
    "printer": Edit({"what": "printer", "amount": 300}, reason="a smaller one will do"),
    "yacht": Reject("we do not need one"),
}


def answer(chat: ModelRequest) -> str | list[ToolCall]:
    """Answer as a model would: pay all bills, then report the results."""
    results = [part for part in chat.messages[-1].parts if isinstance(part, ToolResult)]
    if not results:
        return [ToolCall("pay", {"what": what, "amount": amount}) for what, amount in BILLS]
    return "\n".join(result.text for result in results)


@tool
async def pay(what: str, amount: int) -> str:
    """Pay a bill."""
    await trio.lowlevel.checkpoint()
    return f"paid {amount} for {what}"


def needs_person(call: ToolCall, *_: object) -> bool:
    """Request an approval for large amounts only."""
    return isinstance(call.arguments, str) or call.arguments["amount"] > SMALL


def make_agent() -> BareAgent:
    agent = BareAgent("treasurer", llm=ScriptedLLM(answer), tools=[pay], approval=needs_person)

    @agent.on_session
    def attach(session: Session) -> None:
        session.on_approval(lambda asked: print("asks:", asked.question, dict(asked.arguments)))
        session.on_conversation(print)

    return agent


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = f"sqlite:///{Path(folder) / 'agents.db'}"
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make_agent())
            session = await agent.create_session("ada", "Pay the bills.", session_id="bills")
            await session.wait_idle()
            print("the session is", session.status)

        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make_agent())
            for asked in await agent.approvals():
                await agent.answer(asked, PERSON[asked.arguments["what"]], by="grace")
            session = await agent.open_session("bills")
            await session.wait_idle()
            print("the session is", session.status)


if __name__ == "__main__":
    trio.run(main)
