"""A model that plays a customer, in a single conversation and in evaluations."""

import json

import pytest

from actgent import (
    BareAgent,
    ConfigurationError,
    LimitReached,
    Limits,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    tool,
)
from actgent.evaluation import Case, SimulatedUser, evaluate, goal_reached, load_cases, to_html


def line(message="", **more):
    return json.dumps({"message": message, **more})


def shop():
    """Return a model that asks for the city, and then books."""
    return ScriptedLLM(["To which city?", "It is booked."], repeat=True)


def customer(*lines, **options):
    return SimulatedUser("a flight to Rome", llm=ScriptedLLM(list(lines)), **options)


async def test_simulated_user_talks_until_the_goal_is_achieved():
    """The user sends each message, and the model that plays the user gets the agent's answers."""
    played = ScriptedLLM(
        [line("I want to fly."), line("To Rome."), line("Thanks!", achieved=True), line(achieved=True)]
    )
    user = SimulatedUser("a flight to Rome", llm=played, persona="in a hurry")
    async with BareAgent("shop", llm=shop()) as agent:
        session = await agent.create_session("ada")
        received = await user.talk_to(agent, session)
    texts = [each.text for each in session.history if each.sender.kind == "user"]
    assert texts == ["I want to fly.", "To Rome.", "Thanks!"]
    assert (received.achieved, received.gave_up, received.turns) == (True, False, 3)
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
async def test_conversation_stop_reasons(lines, options, came_to):
    """Cases: the user gives up, `max_turns`, an opening message, and no message."""
    async with BareAgent("shop", llm=shop()) as agent:
        received = await customer(*lines, **options).talk_to(agent)
    assert (received.achieved, received.gave_up, received.turns) == came_to
    assert (received.reply is None) == (came_to[2] == 0)


async def test_evaluation_with_a_simulated_user():
    """Achieving the goal is a separate check, and the trial contains the conversation."""
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


async def test_simulated_user_from_a_file(tmp_path):
    """The file has only a goal, or an object. The error names an unknown key."""
    (tmp_path / "a.md").write_text("---\nuser: {goal: a flight, persona: old, max_turns: 4}\n---\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"user": "a room", "expected": "booked"}) + "\n")
    one, two = load_cases(tmp_path)
    assert (one.user.goal, one.user.persona, one.user.max_turns) == ("a flight", "old", 4)
    assert (two.user.goal, two.title, two.input) == ("a room", "a room", ())
    (tmp_path / "c.jsonl").write_text(json.dumps({"user": {"gaol": "x"}}) + "\n")
    with pytest.raises(ConfigurationError, match="gaol"):
        load_cases(tmp_path)


def test_simulated_user_requires_a_goal():
    """A `max_turns` below 1 also raises."""
    with pytest.raises(ConfigurationError, match="goal of a simulated user must not be empty"):
        SimulatedUser(" ")
    with pytest.raises(ConfigurationError, match="at least 1"):
        SimulatedUser("x", max_turns=0)


# --- users with tools ----------------------------------------------------------------------


class Phone:
    """A phone and its line. The user changes the phone, and the agent changes the line."""

    def __init__(self):
        self.airplane_mode, self.is_blocked = True, True

    @property
    def tools(self):
        """The tools of the phone's user."""
        return [tool(effect="pure")(self.check_signal), tool(self.toggle_airplane_mode)]

    def check_signal(self) -> str:
        """Look at the bars."""
        return "no signal" if self.airplane_mode or self.is_blocked else "four bars"

    def toggle_airplane_mode(self) -> str:
        """Switch it on or off."""
        self.airplane_mode = not self.airplane_mode
        return f"airplane mode is now {'on' if self.airplane_mode else 'off'}"


class Support(BareAgent):
    """An agent that can unblock the line of a phone, but cannot use the phone."""

    def __init__(self, phone=None):
        self.phone = phone or Phone()

        @tool(effect="idempotent")
        def unblock_line() -> str:
            """Unblock."""
            self.phone.is_blocked = False
            return "unblocked"

        answers = [ToolCall("unblock_line", {}), "Please switch airplane mode off.", "A signal now?", "Good."]
        self.script = ScriptedLLM(answers)
        super().__init__("support", llm=self.script, tools=[unblock_line])


def make_support():
    return Support()


def owner_of_phone(phone, **options):
    lines = [
        ToolCall("check_signal", {}),
        line("My phone has no signal."),
        ToolCall("toggle_airplane_mode", {}),
        line("It is off."),
        ToolCall("check_signal", {}),
        line("Four bars!", achieved=True),
    ]
    return SimulatedUser("a signal", llm=ScriptedLLM(lines), tools=phone.tools, **options)


async def test_simulated_user_calls_tools():
    """The agent sees only the user's messages. The model that plays the user sees the tool results."""
    agent = Support()
    user = owner_of_phone(agent.phone)
    async with agent:
        session = await agent.create_session("ada")
        received = await user.talk_to(agent, session)
    assert (received.stop, received.turns) == ("achieved", 3)
    assert [call.name for call in received.calls] == ["check_signal", "toggle_airplane_mode", "check_signal"]
    results = [result.content for message in received.history for result in message.tool_results]
    assert results == ["no signal", "airplane mode is now off", "four bars"]
    assert not agent.phone.airplane_mode
    contents = repr(agent.script.chats) + repr(session.history)
    assert "It is off." in contents
    assert not any(
        expected in contents for expected in ("check_signal", "four bars", "airplane mode is now off")
    )
    assert [call.name for message in session.history for call in message.tool_calls] == ["unblock_line"]


async def test_tools_of_a_simulated_user_get_deps():
    """The tools of the user get `deps` like the tools of an agent."""

    @tool
    def look(context: ToolContext[dict]) -> str:
        """Look."""
        return context.deps["colour"]

    lines = [ToolCall("look", {}), line("I see it.", achieved=True)]
    user = SimulatedUser("x", llm=ScriptedLLM(lines), tools=[look], deps={"colour": "red"})
    async with BareAgent("shop", llm=shop()) as agent:
        received = await user.talk_to(agent)
    assert [result.content for message in received.history for result in message.tool_results] == ["red"]


async def test_simulated_user_has_limits():
    """The limits of the user are separate from the agent's."""
    phone = Phone()
    llm = ScriptedLLM(lambda _: ToolCall("toggle_airplane_mode", {}))
    user = SimulatedUser("a signal", llm=llm, tools=phone.tools, limits=Limits(model_calls=4))
    async with BareAgent("shop", llm=shop()) as agent:
        with pytest.raises(LimitReached):
            await user.talk_to(agent)


STOPS = {
    "achieved": ([line("Hi."), line("Bye.", achieved=True)], 2),
    "gave_up": ([line("Hi."), line("Bye.", gives_up=True)], 1),
    "transferred": ([line("Hi."), line("Bye.", transferred=True)], 1),
    "out_of_scope": ([line("Hi."), line("", out_of_scope=True)], 1),
    "limit": ([line("Hi.")] * 9, 3),
    "silent": ([line("Hi."), line("")], 1),
}


@pytest.mark.parametrize("stop", STOPS)
async def test_stop_reasons_are_reported(stop):
    """The result of an evaluation, its JSON and its page contain the reason."""
    lines, turns = STOPS[stop]
    report = await evaluate(
        [Case(user=customer(*lines, max_turns=3))], {"shop": lambda: BareAgent("shop", llm=shop())}
    )
    (trial,) = report.trials
    assert (trial.simulation.stop, trial.simulation.turns) == (stop, turns)
    assert (trial.simulation.achieved, trial.simulation.gave_up) == (stop == "achieved", stop == "gave_up")
    assert trial.passed == (stop == "achieved")
    (plain,) = json.loads(report.to_json())["trials"]
    assert (plain["simulation"]["stop"], plain["simulation"]["turns"]) == (stop, turns)
    assert f"{stop} after {turns} message" in to_html(report)


async def test_each_run_has_its_own_simulated_user():
    """A function of the agent creates the user, so that both share state."""
    case = Case(user=lambda agent: owner_of_phone(agent.phone), checks=[lambda trial: len(trial.calls) == 1])
    report = await evaluate([case], {"support": make_support}, runs=3)
    assert [trial.passed for trial in report.trials] == [True] * 3
    (plain, *_) = json.loads(report.to_json())["trials"]
    assert [call["name"] for call in plain["simulation"]["calls"]][1] == "toggle_airplane_mode"
    assert case.title == "<lambda>"
