"""If several limits of model calls apply to a turn, the smaller one takes effect and the error names it."""

import itertools

import pytest

from actgent import (
    Agent,
    BareAgent,
    GoalAgent,
    LimitReached,
    Limits,
    PlanAgent,
    ReActAgent,
    ScriptedLLM,
    SimpleAgent,
    StepsAgent,
    ToolCall,
    tool,
)
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.goal.goal_protocol import Goal
from actgent.protocols.plan import Planning
from actgent.protocols.protocol_interface import Protocol
from actgent.protocols.steps_protocol import Steps


@tool(effect="pure")
def look(page: int) -> str:
    """Look a page up."""
    return f"page {page}"


class Short(Bare):
    """A protocol of a user, with a limit as an attribute of the class."""

    max_iterations = 3


def endless():
    """Return a model that calls a tool forever, each time with another argument."""
    pages = itertools.count()
    return ScriptedLLM(lambda _: [ToolCall("look", {"page": next(pages)})], keep=None)


def short(maximum):
    made = Short()
    made.max_iterations = maximum
    return made


KINDS = {
    "bare": (lambda llm, _, **options: BareAgent("a", llm=llm, **options), None),
    "simple": (lambda llm, _, **options: SimpleAgent("a", llm=llm, **options), None),
    "react": (lambda llm, _, **options: ReActAgent("a", llm=llm, **options), None),
    "steps": (
        lambda llm, most, **options: StepsAgent("a", llm=llm, max_iterations=most, **options),
        "raise max_iterations=... of agent 'a'",
    ),
    "steps as a protocol": (
        lambda llm, most, **options: Agent("a", llm=llm, protocol=Steps(max_iterations=most), **options),
        "raise max_iterations=... of agent 'a'",
    ),
    "plan": (
        lambda llm, most, **options: PlanAgent("a", llm=llm, protocol=Planning(model_calls=most), **options),
        "raise Planning(model_calls=...) of agent 'a'",
    ),
    "goal": (
        lambda llm, most, **options: GoalAgent("a", llm=llm, max_iterations=most, **options),
        "raise max_iterations=... of agent 'a'",
    ),
    "goal as a protocol": (
        lambda llm, most, **options: Agent("a", llm=llm, protocol=Goal(max_iterations=most), **options),
        "raise max_iterations=... of agent 'a'",
    ),
    "pair": (
        lambda llm, most, **options: Agent(
            "a", llm=llm, protocol=Protocol.pair(Asks(), Bare(), max_iterations=most), **options
        ),
        "raise Protocol.pair(max_iterations=...) of agent 'a'",
    ),
    "a class of one's own": (
        lambda llm, most, **options: Agent("a", llm=llm, protocol=short(most), **options),
        "raise Short.max_iterations=... of agent 'a'",
    ),
}
REMEDIES = {
    "agent": "raise Limits(model_calls=...) of agent 'a'",
    "session": "raise Limits(model_calls=...) of session 's' of agent 'a'",
    "run": "raise run(limits=Limits(model_calls=...)) of agent 'a'",
}


class Asks(Bare):
    """A template that describes the format of answers."""

    examples = ("an answer",)


async def reached(kind, *, protocol=9, agent=None, session=None, run=None, output=None):
    """Run an agent into its limits; returns the number of model calls and the error."""
    llm = endless()
    make, _ = KINDS[kind]
    limits = {"agent": agent, "session": session, "run": run}
    value = {name: None if most is None else Limits(model_calls=most) for name, most in limits.items()}
    async with make(llm, protocol, tools=[look], limits=value["agent"], output=output) as made:
        opened = await made.create_session("ada", session_id="s", limits=value["session"])
        with pytest.raises(LimitReached) as caught:
            await made.run("go", session=opened, limits=value["run"])
    return len(llm.chats), caught.value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", REMEDIES)
async def test_error_names_the_smaller_of_two_limits(kind, source):
    """One limit is that of a protocol. The other is `Limits` of the agent, the session or the run, in either order."""
    argument = KINDS[kind][1]
    for protocol, limit in ((3, 7), (7, 3), (12, 14), (14, 12)):
        least = limit if argument is None else min(protocol, limit)
        calls, error = await reached(kind, protocol=protocol, **{source: limit})
        assert (calls, error.value) == (least, least)
        assert (argument if least != limit else REMEDIES[source]) in str(error)


@pytest.mark.parametrize("kind", ["bare", "steps", "plan", "goal"])
@pytest.mark.parametrize("pair", [("agent", "session"), ("session", "run")], ids="-".join)
async def test_smaller_of_two_call_limits_applies(kind, pair):
    """A turn uses all budgets; `run(limits=...)` replaces only the agent's limits."""
    for limits in ((3, 7), (7, 3)):
        calls, error = await reached(kind, **dict(zip(pair, limits, strict=True)))
        assert (calls, error.value) == (3, 3)
        assert REMEDIES[pair[limits.index(3)]] in str(error)


async def test_output_type_changes_no_limit():
    """`output=` keeps the limit of the protocol and its name."""
    for kind in ("steps", "plan", "a class of one's own"):
        calls, error = await reached(kind, protocol=3, agent=10, output={"type": "object"})
        assert calls == 3
        assert KINDS[kind][1] in str(error)


async def test_without_a_limit_a_turn_has_25_model_calls():
    """The default applies if neither protocol nor `Limits` sets a limit."""
    calls, error = await reached("bare")
    assert calls == 25
    assert REMEDIES["agent"] in str(error)
