"""Toolsets: tools that share a connection, many tools with a small prompt, and tools that are added while the agent runs."""

from collections.abc import Callable, Sequence

import trio

from actgent import BareAgent, Deferred, ScriptedLLM, StaticToolset, Tool, ToolCall, Toolset, tool


@tool(thread=False, effect="pure")
def convert(amount: float, currency: str, rate: float = 1.0) -> str:
    """Convert an amount of money."""
    return f"{amount * rate:.2f} {currency}"


class Shop(Toolset):
    """Toolset that opens a connection, lists its tools, and closes the connection at the end."""

    name = "shop"

    async def run(self, publish: Callable[[Sequence[Tool]], None]) -> None:
        stock = {"lamp": 3}
        print("shop: connected")

        @tool(thread=False)
        def order(item: str) -> str:
            """Order an item."""
            stock[item] -= 1
            return f"ordered; {stock[item]} left"

        publish([order])
        try:
            await trio.sleep_forever()
        finally:
            print("shop: closed")


def report(number: int) -> Tool:
    @tool(name=f"report_{number}", thread=False, effect="pure")
    def one() -> str:
        """Show one of many reports."""
        return f"report {number}: all is well"

    return one


async def main() -> None:
    money = StaticToolset("money", [convert]).configured(rate=0.92)  # the prompt never contains the rate
    reports = Deferred(StaticToolset("reports", [report(number) for number in range(100)]))
    llm = ScriptedLLM(
        [
            [
                ToolCall("convert", {"amount": 10, "currency": "EUR"}),
                ToolCall("shop_order", {"item": "lamp"}),
            ],
            "A lamp is on its way.",
            [ToolCall("find_tools", {"query": "report 42"})],
            [ToolCall("call_tool", {"name": "report_42"})],
            "All is well.",
        ]
    )
    async with BareAgent("clerk", llm=llm, tools=[money, Shop().prefixed("shop_"), reports]) as agent:
        session = await agent.create_session("ada")
        session.on_conversation(print)
        session.on_tool_result(lambda result: print(f"{result.tool_name}: {result.content:.60}"))
        await session.chat("A lamp, please. What are 10 dollars in euros?")
        await session.chat("And what does report 42 say?")
        await session.wait_idle()
        print("offered:", ", ".join(spec.name for spec in llm.chats[-1].tools))


trio.run(main)
