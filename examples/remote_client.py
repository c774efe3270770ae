"""Use an agent of another process with the methods of a local agent. The client restores a broken connection.

Start the program with `.venv/bin/python examples/remote_client.py`. The program needs no API key and no network.
The program starts the server in its own process. `actgent serve` starts such a server as a command.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from actgent import (
    Approve,
    BareAgent,
    ScriptedLLM,
    Suspended,
    ToolCall,
    connect,
    open_gateway,
    open_runtime,
    tool,
)


@tool(approval=True, effect="once")
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@asynccontextmanager
async def serving() -> AsyncGenerator[tuple[str, str], None]:
    """Run a server of one agent, and yield its URL and a token."""
    llm = ScriptedLLM(["Good day, Ada.", ToolCall("pay", {"amount": 900}), "It is paid."])
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(BareAgent("clerk", llm=llm, tools=[pay]))
        async with open_gateway(runtime, bind="127.0.0.1:0") as gateway:
            yield gateway.url or "", gateway.key or ""


async def main() -> None:
    async with serving() as (url, token), connect(url, token=token) as client:
        clerk = client.agent("clerk")
        session = await clerk.create_session(session_id="desk-1")
        session.on_conversation(lambda reply: print(f"clerk: {reply.text}"))
        session.on_tool_result(lambda result: print(f"tool: {result.content}"))

        await session.chat("Good day", message_id="m1")
        await session.chat(
            "Good day", message_id="m1"
        )  # a retry with the same id: the message is accepted once
        await session.wait_idle()

        try:
            await clerk.run("Pay the printer", session=session)
        except Suspended as waiting:
            print(f"calls that wait for an approval: {', '.join(waiting.tools)}")
            await clerk.resume({each: Approve() for each in waiting.ids})
        await session.wait_idle()
        print(
            f"received the events up to record {session.cursor}; messages: {(await session.messages()).total}"
        )


if __name__ == "__main__":
    trio.run(main)
