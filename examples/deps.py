"""Dependencies of tools: the program passes typed objects, which the journal never stores."""

import attrs
import trio

from actgent import BareAgent, ScriptedLLM, Session, ToolCall, ToolContext, tool

LLM = ScriptedLLM(
    [ToolCall("buy", {"what": "tea"}), "The tea is bought.", ToolCall("buy", {"what": "cake"}), "Bought."]
)


@attrs.define
class Purse:
    """Money of a customer, in coins."""

    owner: str
    coins: int


@tool
async def buy(context: ToolContext[Purse], what: str) -> str:
    """Buy something for three coins."""
    await trio.lowlevel.checkpoint()
    purse = context.deps  # type checkers infer the type Purse
    purse.coins -= 3
    return f"{what} for {purse.owner}, who has {purse.coins} coins left"


async def open_purse(session: Session) -> Purse:
    """Return a new purse for each session. The runtime calls this function again after a restart."""
    await trio.lowlevel.checkpoint()
    return Purse(session.owner.name, coins=10)


async def main() -> None:
    async with BareAgent("shop", role="shopkeeper", llm=LLM, tools=[buy], deps=open_purse) as agent:
        session = await agent.create_session("ada")
        session.on_tool_result(lambda result: print(result.content))
        print(await agent.run("Some tea, please.", session=session))
        print(await agent.run("And cake, on Bob.", session=session, deps=Purse("Bob", coins=5)))


if __name__ == "__main__":
    trio.run(main)
