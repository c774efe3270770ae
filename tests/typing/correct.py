# pyright: strict
"""Programs without type errors: each type checker must report no error here."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, assert_type

import attrs
import pydantic

from actgent import (
    Agent,
    AgentOptions,
    BareAgent,
    GoalAgent,
    GoalResult,
    Message,
    PlanAgent,
    Priority,
    ReActAgent,
    Reply,
    RouterAgent,
    RunOptions,
    ScriptedLLM,
    Session,
    StepsAgent,
    ToolContext,
    ToolResult,
    open_runtime,
    run_agent,
    tool,
)


@attrs.frozen
class Offer:
    """An offer of a shop."""

    price: int


@dataclasses.dataclass
class Refused:
    """The reason why a shop makes no offer."""

    reason: str


class Movie(TypedDict):
    """A movie as a TypedDict."""

    title: str


class Person(pydantic.BaseModel):
    """A person as a pydantic model."""

    name: str


class Point(NamedTuple):
    """A point as a NamedTuple."""

    x: int
    y: int


MODEL = ScriptedLLM(["..."])


@tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool(effect="pure", timeout=5)
async def look(name: str, context: ToolContext) -> str:
    """Look something up."""
    return f"{name} {context.session_id}"


class Shop:
    """A shop as the dependency of tools."""

    name = "corner"


@tool(effect="once")
def sell(context: ToolContext[Shop], what: str) -> str:
    """Sell something."""
    return f"{what} from {context.deps.name}"


@tool
async def count(context: ToolContext[Shop]) -> int:
    """Count what is there."""
    return len(context.deps.name)


async def open_shop(session: Session) -> Shop:
    """Return a new shop for a session."""
    return Shop()


async def deps() -> None:
    """Dependencies of tools: of an agent, a session and a run."""
    shop = BareAgent("shop", llm=MODEL, tools=[add, sell, count], deps=Shop(), output=Offer)
    assert_type(shop, BareAgent[Offer, Shop])
    session = await shop.ensure_session("ada", "ada", deps=Shop())
    assert_type((await shop.run("Sell it.", session=session, deps=Shop())).data, Offer)
    later = ReActAgent("later", llm=MODEL, tools=[sell, add], deps=open_shop)
    await later.open_session("ada", deps=Shop())
    given = PlanAgent("given", llm=MODEL, tools=[sell, look])
    await given.process("Sell it.", deps=Shop())
    any_agent: Agent = shop
    print(any_agent, sell(ToolContext(deps=Shop()), what="tea"))


def clerk(**options: Unpack[AgentOptions]) -> Agent:
    """Create an agent with typed options."""
    return BareAgent("clerk", **options)


async def ask(agent: Agent[Offer], **options: Unpack[RunOptions]) -> Offer:
    """Pass typed run options to an agent."""
    reply = await agent.run("How much?", **options)
    return reply.data


async def outputs() -> None:
    """Each kind of declared output type."""
    offers = Agent("offers", llm=MODEL, tools=[add, look], output=Offer)
    assert_type((await offers.run("?")).data, Offer)
    assert_type((await offers.run("?", output=Movie)).data, Movie)
    assert_type((await offers.run("?", output=list[Offer])).data, list[Offer])
    assert_type((await BareAgent("b", llm=MODEL, output=Point).run("?")).data, Point)
    assert_type((await ReActAgent("r", llm=MODEL, output=Refused).run("?")).data, Refused)
    assert_type((await RouterAgent("r", llm=MODEL, routes={"buy": offers}).run("?")).data, Any)
    either: Agent[Offer | Refused] = Agent("either", llm=MODEL, output=Offer | Refused)
    assert_type((await either.run("?")).data, Offer | Refused)
    word: Agent[Literal["yes", "no"]] = Agent("word", llm=MODEL, output=Literal["yes", "no"])
    assert_type((await word.run("?")).data, Literal["yes", "no"])
    people = Agent("people", llm=MODEL, output=list[Person])
    assert_type((await people.run("?")).data, list[Person])
    assert_type((await people.run("?")).usage.total.cost, float | None)
    form = Agent("form", llm=MODEL, output={"type": "object", "properties": {}})
    assert_type((await form.run("?")).data, Any)
    assert_type((await clerk(llm=MODEL, role="clerk").run("?", priority="high")).text, str)
    assert_type(await ask(offers, timeout=3), Offer)
    anything: Agent[object] = offers
    print(anything)


async def results() -> None:
    """All results have `text`, `data` and `usage`."""
    planned = await PlanAgent("planner", llm=MODEL, output=Offer).process("Buy it.")
    assert_type(planned.data, Offer | None)
    print(planned.text, planned.usage.cost)
    assert_type(await run_agent("Buy it.", MODEL, tools=[add], output=Offer), GoalResult[Offer])
    assert_type((await run_agent("Buy it.", MODEL)).data, str | None)
    goal = GoalAgent("goal", llm=MODEL, tools={"plus": add}, output=Offer)
    assert_type((await goal.run("Buy it.")).data, Offer | None)
    worker = StepsAgent("worker", llm=MODEL, output=Offer)
    conversation = await worker.open_conversation()
    assert_type((await conversation.run("How much?")).data, Offer)
    async with worker.stream_state("How much?") as states:
        async for state in states:
            print(state.data.price if state.data else state.text, state.usage)


async def streams(agent: Agent[Offer]) -> AsyncIterator[int]:
    """Events of a stream."""
    async with agent.stream("How much?", priority=Priority.HIGH) as events:
        async for event in events:
            if isinstance(event, Reply):
                yield event.data.price
            elif isinstance(event, ToolResult):
                print(event.content)


async def sessions(agent: Agent[Offer]) -> None:
    """Handlers of all kinds."""
    session = await agent.create_session("ada", on_busy="interrupt")
    replies: list[Reply] = []
    session.on_conversation(print)
    session.on_conversation(replies.append)
    session.on_conversation(lambda reply: print(reply.data.price))
    session.on_tool_result(lambda result: print(result.tool_name, result.content))

    @session.on_conversation
    def show(reply: Reply[Offer]) -> None:
        print(reply.data.price)

    @session.on_conversation
    async def answer(reply: Reply, session: Session) -> None:
        await session.chat(reply.text, priority="urgent")

    with session.listening(on_conversation=show, on_token=lambda token: print(token.text)):
        await session.chat("Hello", on_busy="collect")
    session.remove_handler(answer)


async def hooks() -> None:
    """Handlers of an agent that a runtime started."""
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("offers", llm=MODEL, output=Offer))

        @agent.on_session
        async def greet(session: Session[Offer]) -> None:
            session.on_conversation(print)

        @agent.on_query
        def context(message: Message) -> str:
            return message.text

        agent.on_message(lambda message: print(message.text), priority=1)
        assert_type((await agent.run("?")).data, Offer)
        print(greet, context)
