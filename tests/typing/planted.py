"""Mistakes that both type checkers have to find: exactly the lines that say what is wrong in them."""

from typing import TypedDict

import attrs
import pydantic

from actgent import (
    Agent,
    BareAgent,
    GoalAgent,
    Limits,
    PlanAgent,
    Priority,
    ReActAgent,
    Reply,
    RouterAgent,
    ScriptedLLM,
    Session,
    StepsAgent,
    ToolContext,
    ToolResult,
    run_agent,
    tool,
)


@attrs.frozen
class Offer:
    """What a shop asks."""

    price: int


class Movie(TypedDict):
    """Something to see."""

    title: str


MODEL = ScriptedLLM(["..."])
AGENT = Agent("clerk", llm=MODEL, output=Offer)


# --- what an agent is told -----------------------------------------------------------------

BareAgent("clerk", llm=MODEL, rule="polite")  # wrong: an option that there is not
ReActAgent("clerk", llm=MODEL, tempreature=0.5)  # wrong: a word that is misspelt
StepsAgent("clerk", llm=MODEL, max_iterations="3")  # wrong: text for a number
RouterAgent("clerk", llm=MODEL, routes={"buy": "shop"})  # wrong: a name for an agent
GoalAgent("clerk", llm=MODEL, on_busy="wait")  # wrong: a rule that there is not
PlanAgent("clerk", llm=MODEL, limits=Limits(toks=5))  # wrong: a bound that there is not
Agent("clerk", role="clerk")  # wrong: no model
Agent("clerk", llm=5)  # wrong: a number for a model


@tool(effect="twice")  # wrong: an effect that there is not
def greet(name: str) -> str:
    """Greet someone."""
    return name


@tool
def part(name: str) -> str:
    """Say goodbye."""
    return name


part(5)  # wrong: a tool is still its function


class Shop:
    """What tools sell from."""

    name = "corner"


class Bank:
    """Something else."""


async def open_shop(session: Session) -> Shop:
    """Give each session a shop."""
    return Shop()


@tool
def sell(context: ToolContext[Shop], what: str) -> str:
    """Sell something."""
    print(context.deps.owner)  # wrong: an attribute that there is not
    return what


BareAgent("clerk", llm=MODEL, deps=Bank(), tools=[sell])  # wrong: deps of another type than a tool takes
SELLER = ReActAgent("clerk", llm=MODEL, deps=Shop(), tools=[sell])


async def deps() -> None:
    """What tools are given."""
    await SELLER.run("Sell it.", deps=Bank())  # wrong: another type than the agent's
    await SELLER.create_session("ada", deps="shop")  # wrong: a name for a shop
    await SELLER.open_session("ada", deps=open_shop)  # wrong: a function is the agent's


class Person(pydantic.BaseModel):
    """Someone."""

    name: str


async def outputs() -> None:
    """Values of the declared type."""
    reply = await AGENT.run("How much?")
    reply.data.cost  # wrong: an attribute that there is not
    movie: Movie = reply.data  # wrong: another type
    other = await AGENT.run("What is on?", output=Movie)
    other.data["name"]  # wrong: a key that there is not
    print(movie, other.txt)  # wrong: an attribute of a reply that there is not

    (await AGENT.run("Who?", output=Person)).data.age  # wrong: a field that a model has not
    print(other.usage.all)  # wrong: an attribute that there is not

    planned = await PlanAgent("planner", llm=MODEL, output=Offer).process("Buy it.")
    planned.data.price  # wrong: there may be no data
    result = await run_agent("Buy it.", MODEL, output=Offer)
    price: str = result.data.price if result.data else ""  # wrong: a number for text
    print(price, result.texts)  # wrong: an attribute of a result that there is not

    async with AGENT.stream("How much?") as events:
        async for event in events:
            if isinstance(event, Reply):
                event.data.cost  # wrong: an attribute that there is not, in a stream
    async with StepsAgent("worker", llm=MODEL, output=Offer).stream_state("How much?") as states:
        async for state in states:
            state.data.price  # wrong: there may be no data yet


# --- what a session is told, and tells -----------------------------------------------------


def take_result(result: ToolResult) -> None:
    """Take another thing than a reply."""


def take_movie(reply: Reply[Movie]) -> None:
    """Take a reply with other data."""


async def sessions() -> None:
    """Handlers by kind, and the words of a call."""
    session = await AGENT.create_session("ada", on_busy="later")  # wrong: a rule that there is not
    session.on_conversation(take_result)  # wrong: a handler of another kind
    session.on_conversation(take_movie)  # wrong: a handler of other data
    session.on_exception(lambda failure: failure.reason)  # wrong: an attribute that there is not

    @session.on_token  # wrong: three parameters, and two are given
    def show(token: object, session: Session, place: int) -> None:
        """Show a token."""

    await session.chat("Hello", priority="soon")  # wrong: a priority that there is not
    await session.chat("Hello", priority=Priority.NOW)  # wrong: a member that there is not
    await session.chat("Hello", prority="high")  # wrong: a word that is misspelt
    await AGENT.run("Hello", session="ada")  # wrong: an id for a session
    with session.listening(on_conversation=take_result):  # wrong: a handler of another kind
        pass


@AGENT.on_session  # wrong: a function of a session with other data
def greet_session(session: Session[Movie]) -> None:
    """Take a session with other data."""
