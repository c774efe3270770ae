"""Type errors that both type checkers must report: exactly the lines with a comment that begins with "wrong"."""

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
    """An offer of a shop."""

    price: int


class Movie(TypedDict):
    """A movie as a TypedDict."""

    title: str


MODEL = ScriptedLLM(["..."])
AGENT = Agent("clerk", llm=MODEL, output=Offer)


# --- arguments of agents -------------------------------------------------------------------

BareAgent("clerk", llm=MODEL, rule="polite")  # wrong: an unknown option
ReActAgent("clerk", llm=MODEL, tempreature=0.5)  # wrong: a misspelt option
StepsAgent("clerk", llm=MODEL, max_iterations="3")  # wrong: text instead of a number
RouterAgent("clerk", llm=MODEL, routes={"buy": "shop"})  # wrong: a name instead of an agent
GoalAgent("clerk", llm=MODEL, on_busy="wait")  # wrong: an unknown rule
PlanAgent("clerk", llm=MODEL, limits=Limits(toks=5))  # wrong: an unknown limit
Agent("clerk", role="clerk")  # wrong: no model
Agent("clerk", llm=5)  # wrong: a number instead of a model


@tool(effect="twice")  # wrong: an unknown effect
def greet(name: str) -> str:
    """Greet someone."""
    return name


@tool
def part(name: str) -> str:
    """Say goodbye."""
    return name


part(5)  # wrong: a tool is still its function


class Shop:
    """A shop as the dependency of tools."""

    name = "corner"


class Bank:
    """A dependency of another type."""


async def open_shop(session: Session) -> Shop:
    """Return a new shop for a session."""
    return Shop()


@tool
def sell(context: ToolContext[Shop], what: str) -> str:
    """Sell something."""
    print(context.deps.owner)  # wrong: an unknown attribute
    return what


BareAgent("clerk", llm=MODEL, deps=Bank(), tools=[sell])  # wrong: deps of another type than the tool's
SELLER = ReActAgent("clerk", llm=MODEL, deps=Shop(), tools=[sell])


async def deps() -> None:
    """Dependencies of tools."""
    await SELLER.run("Sell it.", deps=Bank())  # wrong: deps of another type than the agent's
    await SELLER.create_session("ada", deps="shop")  # wrong: a name instead of a shop
    await SELLER.open_session("ada", deps=open_shop)  # wrong: only an agent accepts a function


class Person(pydantic.BaseModel):
    """A person as a pydantic model."""

    name: str


async def outputs() -> None:
    """Data of the declared type."""
    reply = await AGENT.run("How much?")
    reply.data.cost  # wrong: an unknown attribute
    movie: Movie = reply.data  # wrong: another type
    other = await AGENT.run("What is on?", output=Movie)
    other.data["name"]  # wrong: an unknown key
    print(movie, other.txt)  # wrong: an unknown attribute of a reply

    (await AGENT.run("Who?", output=Person)).data.age  # wrong: an unknown field of a pydantic model
    print(other.usage.all)  # wrong: an unknown attribute

    planned = await PlanAgent("planner", llm=MODEL, output=Offer).process("Buy it.")
    planned.data.price  # wrong: data may be None
    result = await run_agent("Buy it.", MODEL, output=Offer)
    price: str = result.data.price if result.data else ""  # wrong: a number instead of a text
    print(price, result.texts)  # wrong: an unknown attribute of a result

    async with AGENT.stream("How much?") as events:
        async for event in events:
            if isinstance(event, Reply):
                event.data.cost  # wrong: an unknown attribute, in a stream
    async with StepsAgent("worker", llm=MODEL, output=Offer).stream_state("How much?") as states:
        async for state in states:
            state.data.price  # wrong: data may be None


# --- methods and handlers of sessions ------------------------------------------------------


def take_result(result: ToolResult) -> None:
    """A handler of tool results."""


def take_movie(reply: Reply[Movie]) -> None:
    """A handler of replies with other data."""


async def sessions() -> None:
    """Handlers by kind, and the options of a call."""
    session = await AGENT.create_session("ada", on_busy="later")  # wrong: an unknown rule
    session.on_conversation(take_result)  # wrong: a handler of another kind
    session.on_conversation(take_movie)  # wrong: a handler of other data
    session.on_exception(lambda failure: failure.reason)  # wrong: an unknown attribute

    @session.on_token  # wrong: three parameters instead of at most two
    def show(token: object, session: Session, place: int) -> None:
        """A handler with one parameter too many."""

    await session.chat("Hello", priority="soon")  # wrong: an unknown priority
    await session.chat("Hello", priority=Priority.NOW)  # wrong: an unknown member
    await session.chat("Hello", prority="high")  # wrong: a misspelt option
    await AGENT.run("Hello", session="ada")  # wrong: an id instead of a session
    with session.listening(on_conversation=take_result):  # wrong: a handler of another kind
        pass


@AGENT.on_session  # wrong: a handler of a session with other data
def greet_session(session: Session[Movie]) -> None:
    """A handler of sessions with other data."""
