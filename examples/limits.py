"""Limits: a turn with the work of its helper agents, and a whole session."""

import trio

from actgent import BareAgent, LimitReached, Limits, ScriptedLLM, ToolCall, ToolResult


def show(result: ToolResult) -> None:
    print("worker:", result.content or result.error)


async def lead_a_crowd() -> None:
    """Call eight workers concurrently with a limit of five model calls. The call of the lead counts as well."""
    worker = BareAgent("worker", llm=ScriptedLLM(["a part"], repeat=True), goal="do a part of the work")
    asks = [ToolCall("worker", {"task": f"part {number}"}) for number in range(8)]
    lead = BareAgent("lead", llm=ScriptedLLM([asks]), tools=[worker.as_tool()], limits=Limits(model_calls=5))
    async with lead:
        session = await lead.create_session("ada")
        session.on_tool_result(show)
        try:
            await lead.run("Do it.", session=session)
        except LimitReached as reached:
            print("lead:", reached)


async def talk_with_a_budget() -> None:
    """Limit a session to 200 tokens for all its turns together."""
    async with BareAgent("clerk", llm=ScriptedLLM(["Noted."], repeat=True), max_tokens=20) as clerk:
        session = await clerk.create_session("ada", session_id="notes", limits=Limits(tokens=200))
        for number in range(10):
            try:
                await clerk.run(f"Note the number {number}.", session=session)
            except LimitReached as reached:
                print("clerk:", reached)
                break
            if session.budget is not None:
                print("clerk:", session.budget.left["tokens"], "tokens left")


async def main() -> None:
    await lead_a_crowd()
    await talk_with_a_budget()


if __name__ == "__main__":
    trio.run(main)
