"""A model that plays a customer, in a conversation of its own and in evaluations."""

import json

import pytest

from actgent import BareAgent, ConfigurationError, ScriptedLLM
from actgent.evaluation import Case, SimulatedUser, evaluate, goal_reached, load_cases


def line(message="", **more):
    return json.dumps({"message": message, **more})


def shop():
    """Asks for the city, then books."""
    return ScriptedLLM(["To which city?", "It is booked."], repeat=True)


def customer(*lines, **options):
    return SimulatedUser("a flight to Rome", llm=ScriptedLLM(list(lines)), **options)


async def test_a_user_talks_until_they_have_what_they_want():
    """Each message is the user's own; what the agent answers is told to the model that plays them."""
    played = ScriptedLLM(
        [line("I want to fly."), line("To Rome."), line("Thanks!", achieved=True), line(achieved=True)]
    )
    user = SimulatedUser("a flight to Rome", llm=played, persona="in a hurry")
    async with BareAgent("shop", llm=shop()) as agent:
        session = await agent.create_session("ada")
        told = await user.talk_to(agent, session)
    said = [each.text for each in session.history if each.sender.kind == "user"]
    assert said == ["I want to fly.", "To Rome.", "Thanks!"]
    assert (told.achieved, told.gave_up, told.turns) == (True, False, 3)
    assert "To which city?" in repr(played.chats[1].messages)
    assert "a flight to Rome" in played.chats[0].system
    assert "in a hurry" in played.chats[0].system


@pytest.mark.parametrize(
    ("lines", "options", "came_to"),
    [
        ([line("Hi."), line(gives_up=True)], {}, (False, True, 1)),
        ([line(f"{n}?") for n in range(9)], {"max_turns": 3}, (False, False, 3)),
        ([line(achieved=True)], {"opening": "Rome, please."}, (True, False, 1)),
        ([line()], {}, (False, False, 0)),
    ],
)
async def test_how_a_conversation_ends(lines, options, came_to):
    """Given up, too long, with an opening of its own, and with nothing said."""
    async with BareAgent("shop", llm=shop()) as agent:
        told = await customer(*lines, **options).talk_to(agent)
    assert (told.achieved, told.gave_up, told.turns) == came_to
    assert (told.reply is None) == (came_to[2] == 0)


async def test_an_evaluation_with_a_user():
    """The goal is a check of its own; what was said stands in the trial."""
    good = Case(user=customer(line("Rome."), line(achieved=True)))
    bad = Case(user=customer(line("Rome."), line(gives_up=True)), name="bad", expected="booked")
    report = await evaluate([good, bad], {"shop": lambda: BareAgent("shop", llm=shop())}, concurrency=1)
    first, second = report.trials
    assert (first.case.title, first.passed, first.simulation.turns) == ("a flight to Rome", True, 1)
    assert [each.name for each in first.results] == ["goal reached"]
    assert [(each.name, each.passed) for each in second.results] == [
        ("contains", False),
        ("goal reached", False),
    ]
    assert "gave up after 1 message" in second.results[1].reason
    assert goal_reached(first).passed


async def test_a_user_of_a_file(tmp_path):
    """A goal alone, or an object; a wrong key is named."""
    (tmp_path / "a.md").write_text("---\nuser: {goal: a flight, persona: old, max_turns: 4}\n---\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"user": "a room", "expected": "booked"}) + "\n")
    one, two = load_cases(tmp_path)
    assert (one.user.goal, one.user.persona, one.user.max_turns) == ("a flight", "old", 4)
    assert (two.user.goal, two.title, two.input) == ("a room", "a room", ())
    (tmp_path / "c.jsonl").write_text(json.dumps({"user": {"gaol": "x"}}) + "\n")
    with pytest.raises(ConfigurationError, match="gaol"):
        load_cases(tmp_path)


def test_a_user_without_a_goal_is_refused():
    """And one who may say nothing."""
    with pytest.raises(ConfigurationError, match="wants something"):
        SimulatedUser(" ")
    with pytest.raises(ConfigurationError, match="at least 1"):
        SimulatedUser("x", max_turns=0)
