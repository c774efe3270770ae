"""Malformed answers to each stage of steps, plan and goal have no effect.

They are derived by kind from valid answers, and each passes through the whole agent. Afterwards there is no event, reply, tool run
or state change, but only a failure with the reason.
"""

import json

import attrs
import pytest

from actgent import (
    GoalAgent,
    LimitReached,
    Limits,
    ParseError,
    PlanAgent,
    ReActAgent,
    RouterAgent,
    ScriptedLLM,
    SimpleAgent,
    StepsAgent,
    ToolContext,
    tool,
)

# --- answers that are right, and what leads to them -----------------------------------------------

S_PLAN = {"plan": ["give one", "give two"]}
S_STEP = {
    "tool_thought": "go on",
    "tool_calls": [{"id": f"c{n}", "tool_name": "give", "parameters": {"n": n}} for n in (1, 2)],
}
S_FINAL = {"final_answer": "one and two were given", "thought": "all is there"}
TODO = [
    {"id": "one", "description": "give one"},
    {"id": "two", "description": "two", "dependencies": ["one"]},
]
P_PLAN = {"title": "gifts", "intent": "numbers", "plan": "give them", "todoList": TODO}
P_TOOLS = {"intent": "numbers", "plan": "now", "toolCalls": [{"toolName": "give", "arguments": {"n": 1}}]}
P_CONTENT = {"thoughts": "hm", "content": "one was given", "nextStepDecision": "complete_item"}
P_CALLS = {"thoughts": "hm", "toolCalls": [{"toolName": "give", "arguments": {"n": 1}}]}
P_UPDATE = {"content": "done", "nextStepDecision": "update_plan", "updatedPlan": {"todoList": TODO[1:]}}


def decided(action, **params):
    return {"action": action, "params": params, "reasoning": "as it is"}


G_PLAN = decided("plan", steps=["give one", "sum up"])
G_EXECUTE = decided("execute", calls=[{"tool": "give", "args": {"n": 1}}])
G_SUMMARY = decided("summarize", summary="one was given")
G_ACHIEVED = decided("evaluate", achieved=True, feedback="yes", answer="one")
G_WAY = (G_PLAN, G_EXECUTE, G_SUMMARY)


@attrs.frozen
class Stage:
    """A right answer at one stage of a loop, and how it may be wrong."""

    loop: str
    name: str
    right: dict
    before: tuple = ()
    keys: tuple = ()
    """Members that decide what the answer is."""
    wrong: tuple = ()
    """Members that have other values, each of which is wrong."""


BAD_CALLS = ("give", {"give": 1}, [1], [{}], ["give"], 7)
BAD_LIST = ("one", {"one": 1}, [1], [[]], 7)
STAGES = (
    Stage("steps", "plan", S_PLAN, keys=("plan",), wrong=tuple({"plan": v} for v in (None, 5, "", [], [1]))),
    Stage(
        "steps",
        "step",
        S_STEP,
        (S_PLAN,),
        ("tool_calls", "tool_name"),
        tuple({"tool_calls": value} for value in (*BAD_CALLS, None, [])),
    ),
    Stage("steps", "final", S_FINAL, (S_PLAN, S_STEP), ("final_answer",), ({"final_answer": None},)),
    Stage(
        "plan",
        "planning",
        P_PLAN,
        keys=("todoList", "plan"),
        wrong=tuple({"todoList": value} for value in BAD_LIST),
    ),
    Stage(
        "plan",
        "planning with tools",
        P_TOOLS,
        keys=("toolCalls",),
        wrong=tuple({"toolCalls": value} for value in BAD_CALLS),
    ),
    Stage(
        "plan",
        "content",
        P_CONTENT,
        (P_PLAN,),
        ("content", "nextStepDecision"),
        ({"content": 1}, {"content": ["a"]}, {"nextStepDecision": "DONE"}, {"nextStepDecision": 1}),
    ),
    Stage(
        "plan",
        "tools of an item",
        P_CALLS,
        (P_PLAN,),
        ("toolCalls", "toolName"),
        tuple({"toolCalls": value} for value in BAD_CALLS),
    ),
    Stage(
        "plan",
        "update",
        P_UPDATE,
        (P_PLAN,),
        ("updatedPlan", "nextStepDecision"),
        tuple({"updatedPlan": {"todoList": value}} for value in BAD_LIST),
    ),
    Stage(
        "goal",
        "plan",
        G_PLAN,
        (),
        ("action", "steps"),
        tuple({"params": {"steps": value}} for value in (None, "a", [], [1], {"a": 1})),
    ),
    Stage(
        "goal",
        "execute",
        G_EXECUTE,
        G_WAY[:1],
        ("action", "calls", "tool"),
        tuple({"params": {"calls": value}} for value in (*BAD_CALLS, None, [])),
    ),
    Stage(
        "goal",
        "summarize",
        G_SUMMARY,
        G_WAY[:2],
        ("action", "summary"),
        tuple({"params": {"summary": value}} for value in (None, "", " ", ["a"], 5)),
    ),
    Stage(
        "goal",
        "evaluate",
        G_ACHIEVED,
        G_WAY,
        ("action", "achieved"),
        tuple(
            {"params": {"achieved": True, "missing_items": value}} for value in (["two"], "two", [1])
        )  # achieved, and something is missing
        + tuple({"params": {"achieved": value}} for value in (None, "true", 1, "yes", [])),
    ),
)

# --- what may be wrong with them ------------------------------------------------------------------


def cut(stage):
    """Return an answer that a lost connection or the token limit truncated without notice."""
    text = json.dumps(stage.right)
    return [text[:index] for index in range(1, len(text), max(1, len(text) // 12))]


def fenced_and_cut(stage):
    pieces = cut(stage)[3::3]
    return [f"```json\n{piece}\n```" for piece in pieces] + [f"Here it is:\n```json\n{p}" for p in pieces]


def wrong_case(stage):
    """Names in another case, one at a time."""
    text = json.dumps(stage.right)
    spelled = [(key, spell(key)) for key in stage.keys for spell in (str.upper, _capital)]
    return [text.replace(f'"{key}"', f'"{other}"') for key, other in spelled if key != other]


def _capital(key):
    return key[0].upper() + key[1:]


def wrong_values(stage):
    return [json.dumps(stage.right | value) for value in stage.wrong]


def nested(stage):
    """Inside of something else, where it may be an example."""
    right = stage.right
    return [json.dumps(value) for value in ({"answer": right}, {"examples": [right, right]}, [[right]])]


def dressed(stage):
    """As code, or as a text that holds it."""
    text = json.dumps(stage.right)
    return [f"answer({text})", f"x = {text}", json.dumps(text), f"<think>{text}"]


def several(stage):
    """Return two different answers. Of two plans as text, which have no effect, `steps` uses the first."""
    if stage.right is S_PLAN:
        return []
    text = json.dumps(stage.right)
    other = text.replace("one", "three").replace("1", "3")
    return [f"{text}\n{other}", f"```json\n{text}\n```\nor\n```json\n{other}\n```"]


def empty(_):
    return ["", " \n", "{}", "[]", "null", "```json\n```", "<think>hm</think>", "<think>hm"]


KINDS = (cut, fenced_and_cut, wrong_case, wrong_values, nested, dressed, several, empty)


def cases(kind):
    return [(stage, text) for stage in STAGES for text in kind(stage)]


def more_keys(stage):
    """Return an answer with additional keys."""
    right = stage.right
    return [
        json.dumps(value)
        for value in (
            right | {"mood": "good"},
            {"example": {"final_answer": "x", "achieved": True}} | right,
            right | {"status": "completed", "success": True, "achieved": True},
        )
    ]


def whole_in_words(stage):
    """Return a complete answer alone, in a fence, or within text."""
    text = json.dumps(stage.right)
    return [
        f"```json\n{text}\n```",
        f"Here it is:\n```json\n{text}\n```\n",
        json.dumps(stage.right, indent=2),
    ]


# --- through the agent ----------------------------------------------------------------------------

KIND_OF = {"steps": StepsAgent, "plan": PlanAgent, "goal": GoalAgent}


@attrs.define
class Fate:
    """The result of one answer: all received values, the calls that ran, and the state after its pass."""

    heard: list = attrs.field(factory=list)
    ran: list = attrs.field(factory=list)
    state: object = None
    before: object = None

    @property
    def kinds(self):
        return [type(delivery).__name__ for delivery in self.heard]


async def fates(loop, asked):
    """Return the result of each `(stage, text)`, all in sessions of one agent, without later events."""
    found = {f"s{number}": Fate() for number in range(len(asked))}
    running = set()

    @tool(thread=False)
    def give(n: int, context: ToolContext) -> str:
        """Give a number."""
        if context.session_id in running:
            found[context.session_id].ran.append(n)
        return f"given: {n}"

    def answer(chat):
        session_id = chat.messages[0].parts[0].text
        stage, text = asked[int(session_id[1:])]
        place = sum(message.role == "assistant" for message in chat.messages)
        if place < len(stage.before):
            return json.dumps(stage.before[place])
        fate, state = found[session_id], dict(sessions[session_id].state)
        if session_id in running:
            fate.state = state
            raise RuntimeError("that was all")
        running.add(session_id)
        fate.before = fate.state = state
        fate.heard.clear()
        return text

    agent = KIND_OF[loop]("x", llm=ScriptedLLM(answer, keep=0), tools=[give], limits=Limits(output_retries=0))
    sessions = {}
    async with agent:
        for session_id, fate in found.items():
            session = sessions[session_id] = await agent.create_session("ada", session_id=session_id)
            for register in (session.on_conversation, session.on_event, session.on_exception):
                register(fate.heard.append)
            await session.chat(session_id)
            await session.wait_idle()
            if "Reply" in fate.kinds:  # no call came after it that could look
                fate.state = dict(session.state)
    return list(found.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loop", KIND_OF)
async def test_malformed_answers_have_no_effect(loop, kind):
    """No plan, action, tool or success follows, only a failure. The state is unchanged."""
    asked = [case for case in cases(kind) if case[0].loop == loop]
    assert asked
    for (stage, text), fate in zip(asked, await fates(loop, asked), strict=True):
        assert fate.kinds == ["Failure"], (stage.name, text, fate)
        assert fate.heard[0].kind in {"parse", "empty"}, (stage.name, text)
        assert (fate.ran, fate.state) == ([], fate.before), (stage.name, text)


def test_there_are_three_hundred_malformed_answers():
    """All answers of a stage differ, and each kind has some for each loop."""
    made = {(stage.loop, stage.name, text) for kind in KINDS for stage, text in cases(kind)}
    assert len(made) >= 300
    assert {(stage.loop, kind) for kind in KINDS for stage, _ in cases(kind)} == {
        (loop, kind) for loop in KIND_OF for kind in KINDS
    }


@pytest.mark.parametrize("kind", [more_keys, whole_in_words])
@pytest.mark.parametrize("loop", KIND_OF)
async def test_text_around_a_valid_answer_is_ignored(loop, kind):
    """Further members, code fences and text do not change the parsed answer."""
    stages = [stage for stage in STAGES if stage.loop == loop]
    asked = [(stage, text) for stage in stages for text in (json.dumps(stage.right), *kind(stage))]
    received = [_without_times(fate) for fate in await fates(loop, asked)]
    each = len(asked) // len(stages)
    for index, stage in enumerate(stages):
        whole, *others = received[index * each : (index + 1) * each]
        assert "ParseError" not in whole, stage
        assert all(other == whole for other in others), (stage, others)


def _without_times(fate):
    received = [
        (kind, getattr(it, "text", None) or getattr(it, "name", None))
        for kind, it in zip(fate.kinds, fate.heard, strict=True)
    ]
    return repr((received, fate.ran, sorted(fate.state)))


# --- words of a model in errors -------------------------------------------------------------------

FORGED = "\x1b[2J\x00\u202e\u2028\n\rINFO all is well " + "x" * 100_000
STRANGE = [
    (SimpleAgent, {"messageType": FORGED, "content": "x"}),
    (SimpleAgent, {"messageType": FORGED}),
    (SimpleAgent, {"messageType": "TOOL_INVOCATION", "content": {"name": FORGED, "parameters": {}}}),
    (SimpleAgent, {"messageType": "TOOL_INVOCATION", "content": {"name": FORGED, "parameters": [1]}}),
    (SimpleAgent, {"messageType": "TOOL_INVOCATION", "content": {"name": FORGED, "args": {}, FORGED: 1}}),
    (ReActAgent, {"primary_action": {"response_purpose": FORGED, "response_content": {}}}),
    (RouterAgent, {"top_level_intent": FORGED}),
    (StepsAgent, {"tool_calls": [{"id": "c", "tool_name": FORGED, "parameters": {}}]}),
    (StepsAgent, {"tool_calls": [{"id": "c", "tool_name": FORGED, "parameters": {}, "type": FORGED}]}),
    (PlanAgent, {"intent": "i", "plan": "p", "toolCalls": [{"toolName": FORGED, "arguments": {}}]}),
    (GoalAgent, decided(FORGED)),
    (GoalAgent, decided("execute", calls=[{"tool": FORGED, "args": {}}])),
]


@pytest.mark.parametrize(("kind", "model_answer"), STRANGE)
async def test_model_text_in_errors_is_truncated_and_escaped(kind, model_answer):
    """It therefore takes one line in logs, terminals and the next prompt."""
    seen = []

    def answer(chat):
        seen.append(chat)
        return json.dumps(model_answer)

    @tool(thread=False)
    def give(n: int) -> int:
        """Give it."""
        return n

    tools = {} if kind is RouterAgent else {"tools": [give]}
    async with kind("a", llm=ScriptedLLM(answer), limits=Limits(model_calls=4), **tools) as agent:
        with pytest.raises((ParseError, LimitReached)) as caught:
            await agent.run("go")
    text = str(caught.value)
    assert len(text) < 1_500
    assert text.isprintable()
    received = [part for chat in seen for each in chat.messages if each.role == "user" for part in each.parts]
    assert max(len(getattr(part, "text", "")) for part in received) < 3_000
    assert not any("\nINFO" in getattr(part, "text", "") for part in received)
