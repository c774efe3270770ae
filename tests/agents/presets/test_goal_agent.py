"""A goal from the first plan to an honest end, through the whole agent."""

import asyncio
import json

import attrs
import pytest
import trio
from pydantic import BaseModel

from actgent import (
    Agent,
    ConfigurationError,
    DeadlineExceeded,
    LimitReached,
    Limits,
    ModelTimeout,
    NotRunning,
    ParseError,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    Usage,
    UsageError,
    tool,
)
from actgent.agents.goal import GoalAgent, GoalResult, run_agent, run_agent_sync
from actgent.llm.model_interface import ModelResponse
from actgent.protocols.goal.goal_decision_parsing import CustomAction
from actgent.protocols.goal.goal_progress import MAX_STALLED, STATE_KEY, progress_in
from actgent.protocols.goal.goal_protocol import Goal
from actgent.protocols.protocol_interface import ClassificationType


def act(action, **params):
    return json.dumps({"action": action, "params": params, "reasoning": "because"})


def use(name, **args):
    return act("execute", tool=name, args=args)


def unmet(feedback="not yet", **more):
    return act("evaluate", achieved=False, feedback=feedback, **more)


PLAN = act("plan", steps=["use ok"])
SUMMARY = act("summarize", summary="v is 1")
ACHIEVED = act("evaluate", achieved=True, feedback="done")
WAY = [PLAN, use("ok"), SUMMARY, ACHIEVED]


def ok(state, args):
    """Return one, or n."""
    return ("v", args.get("n", 1))


def none(state, args):
    """Change nothing."""


def broken(state, args):
    """Raise."""
    raise RuntimeError("it is broken")


def unsaid(chat):
    """Return the text at the end of a request."""
    return chat.messages[-1].parts[0].text


async def run(*script, tools=(ok,), **options):
    llm = ScriptedLLM(list(script))
    return await run_agent("find v", llm, tools=tools, **options), llm


# --- the way to the end ----------------------------------------------------------------------


async def test_a_goal_is_achieved():
    """Case 3 (want): the result is returned without an output format, with all steps."""
    result, llm = await run(*WAY)
    assert isinstance(result, GoalResult)
    assert (result.status, result.achieved, result.error) == ("completed", True, None)
    assert result.data == str(result) == "v is 1"
    assert result.raw_data == {"v": 1}
    assert result.used_tools == ("ok",)
    assert (result.iterations, result.max_iterations, len(llm.chats)) == (4, 20, 4)
    assert "TOOL [4]: ok: {" in result.conversation


async def test_used_tools_are_those_that_returned_a_result():
    """Each tool is listed once, in the order of its first use. Unused and failed tools are not listed."""

    @tool(effect="pure")
    def more(n: int = 2) -> dict[str, int]:
        """Return another value."""
        return {"w": n}

    @tool(effect="pure")
    def never() -> str:
        """Do nothing."""
        return "done"

    @tool(effect="pure")
    def broken() -> str:
        """Break."""
        raise RuntimeError("no")

    script = [PLAN, use("more"), use("broken"), use("ok"), use("more", n=3), SUMMARY, ACHIEVED]
    result, llm = await run(*script, tools=(ok, more, never, broken))
    assert (result.status, result.used_tools) == ("completed", ("more", "ok"))
    assert "not used yet: ok, never, broken." in unsaid(llm.chats[2])


async def test_evaluation_text_is_the_result():
    """If the evaluation has a text for the user, the result is that text."""
    result, _ = await run(*WAY[:3], act("evaluate", achieved=True, answer="One."))
    assert result.data == "One."


async def test_tool_results_replace_a_missing_goal_answer():
    """If an evaluation has neither a summary nor an answer, the results of the tools are the answer."""
    result, _ = await run(PLAN, use("ok"), use("ok", n=2), ACHIEVED)
    assert result.data == '- ok: {"v": 1}\n- ok: {"v": 2}'


async def test_an_old_summary_is_no_answer():
    """Results after a summary are included."""
    result, _ = await run(PLAN, use("ok"), SUMMARY, unmet(), use("ok", n=2), ACHIEVED)
    assert result.data == '- ok: {"v": 1}\n- ok: {"v": 2}'


async def test_a_decision_is_one_call():
    """Weakness 6: no further call repeats a decision."""
    _, llm = await run(*WAY)
    assert len(llm.chats) == len(WAY)


async def test_native_and_text_calls_both_run():
    """Both forms of a call run, count as used, and lead to the next iteration."""
    result, llm = await run(PLAN, ToolCall("ok", {"n": 2}), ToolCall("ok", {"n": 3}), ACHIEVED)
    assert (result.status, result.raw_data, result.used_tools) == ("completed", {"v": 3}, ("ok",))
    result, llm = await run(ToolCall("ok", {}), SUMMARY, ACHIEVED)
    assert result.achieved
    assert "summarize" in unsaid(llm.chats[1])


async def test_a_summary_is_followed_by_one_evaluation():
    """Case 18: one separate call evaluates it; case 19: after a failed evaluation a plan may follow."""
    _, llm = await run(
        PLAN, use("ok"), SUMMARY, unmet(), act("plan", steps=["again"]), use("ok"), SUMMARY, ACHIEVED
    )
    assert "no other:\n- evaluate" in unsaid(llm.chats[3])
    assert "- plan" in unsaid(llm.chats[4])
    assert "- evaluate" not in unsaid(llm.chats[4])


async def test_feedback_enters_the_next_prompts():
    """Case 10: feedback, missing items, suggestions, and the tools that were not used."""
    failed = unmet("too thin", missing_items=["the unit"], suggestions=["use none"])
    _, llm = await run(PLAN, use("ok"), SUMMARY, failed, use("none"), SUMMARY, ACHIEVED, tools=[ok, none])
    for chat in llm.chats[4:6]:
        for expected in ("too thin", "Missing: the unit.", "Suggestions: use none."):
            assert expected in unsaid(chat)
    assert "not used yet: none." in unsaid(llm.chats[4])
    assert "not used yet" not in unsaid(llm.chats[5])


async def test_repeated_calls_are_reported_to_the_model():
    """The second identical call is answered with a hint to try something else."""
    _, llm = await run(PLAN, use("none"), use("none"), use("ok"), SUMMARY, ACHIEVED, tools=[ok, none])
    assert ["in circles" in unsaid(chat) for chat in llm.chats] == [False, False, False, True, False, False]


async def test_each_role_has_its_model():
    """Case 21, in our form: models by role; missing roles use the default."""
    models = {
        role: ScriptedLLM([said], name=role) for role, said in [("planner", PLAN), ("evaluator", ACHIEVED)]
    }
    llm = ScriptedLLM([use("ok"), SUMMARY])
    async with GoalAgent("tutor", llm=llm, tools=[ok], models=models) as agent:
        reply = await agent.run("find v")
    assert (reply.message_type, reply.text) == ("completed", "v is 1")
    assert [len(model.chats) for model in models.values()] == [1, 1]


async def test_goal_without_tools_is_achieved():
    """The model's own knowledge is planned, summarized and evaluated."""
    result, _ = await run(PLAN, SUMMARY, ACHIEVED, tools=())
    assert result.achieved


# --- output ----------------------------------------------------------------------------------


@attrs.frozen
class Found:
    answer: str


async def test_achieved_goal_has_its_output_type():
    """Case 4: the achieved goal is requested in its output type; the text stays text."""
    result, llm = await run(*WAY, '{"answer": "42"}', output=Found)
    assert (result.status, result.data, result.text) == ("completed_with_formatting", Found("42"), "v is 1")
    assert '"answer"' in unsaid(llm.chats[4])
    assert [chat.response_format is None for chat in llm.chats] == [True, True, True, True, False]


async def test_invalid_output_ends_after_three_attempts():
    """Case 4: text and data remain, and the error has the reason."""
    result, llm = await run(*WAY, "{}", "{}", "{}", output=Found)
    assert (result.status, result.data, result.achieved) == ("completed_without_formatting", None, True)
    assert (result.raw_data, result.text) == ({"v": 1}, "v is 1")
    assert "answer" in result.error
    assert len(llm.chats) == 7


async def test_output_value_in_place_of_a_plan_is_malformed():
    """It is a malformed plan, and not a success."""
    fits = '{"answer": "42"}'
    result, _ = await run(fits, *WAY, fits, output=Found)
    assert result.status == "completed_with_formatting"
    result, _ = await run(fits, fits, fits, output=Found)
    assert (result.status, result.data, type(result.failure)) == ("error", None, ParseError)


async def test_goal_accepts_output_of_one_run():
    """`run(output=)` has the same meaning as `output=` of the agent."""
    llm = ScriptedLLM([*WAY, '{"answer": "42"}', *WAY])
    async with GoalAgent("tutor", llm=llm, tools=[ok]) as agent:
        assert agent.protocol.max_iterations == 20
        assert (await agent.run("find v", output=Found)).data == Found("42")
        reply = await agent.run("find v")
    assert (reply.data, reply.message_type) == (None, "completed")


# --- what goes wrong -------------------------------------------------------------------------


async def test_an_unknown_tool_is_an_observation():
    """Case 6: the model reads that the tool does not exist, and continues."""
    result, llm = await run(PLAN, use("zz"), use("ok"), SUMMARY, ACHIEVED)
    assert result.achieved
    assert result.tool_results[0].text.startswith("Error: tool 'zz' not found")
    assert "plan" in unsaid(llm.chats[2])


@attrs.define
class Thing:
    size: int


async def test_tools_that_fail_do_not_end_the_run():
    """Case 7 (want), weaknesses 1 and 2: errors of tools and results that cannot be encoded are observations."""

    def odd(state, args):
        return ("object", object())

    def wrong(state, args):
        return {"v": 1}

    def thing(state, args):
        return ("thing", Thing(3))

    result, _ = await run(
        PLAN,
        use("broken"),
        use("odd"),
        use("wrong"),
        use("thing"),
        SUMMARY,
        ACHIEVED,
        tools=[broken, odd, wrong, thing],
    )
    failed, unsayable, malformed, fine = (made.text for made in result.tool_results)
    assert failed == "Error: RuntimeError: it is broken"
    assert unsayable.startswith("Error: the result cannot be converted to JSON")
    assert "(key, value)" in malformed
    assert fine == '{"thing": {"size": 3}}'
    assert result.raw_data == {"thing": {"size": 3}}
    assert result.achieved


async def test_malformed_answer_is_retried_with_the_error():
    """Case 8 (want): one bad and one good is a success on the second try; three bad ones are a clean stop."""
    result, llm = await run("nope", *WAY)
    assert result.achieved
    assert any("no JSON in the answer" in message.parts[0].text for message in llm.chats[1].messages)
    result, llm = await run("nope", "nope", "nope")
    assert (result.status, result.achieved, result.data, len(llm.chats)) == ("error", False, None, 3)
    assert result.error.startswith("the model gave no usable answer: no JSON in the answer")


# --- every end of the work is a result ---------------------------------------------------------


class Gone(ScriptedLLM):
    """A model that raises its script's exceptions."""

    async def complete(self, chat, *, on_text=None):
        answer = await super().complete(chat, on_text=on_text)
        if answer.text == "gone":
            raise ConnectionError("connection reset")
        if answer.text == "hang":
            await trio.sleep_forever()
        return answer


ENDS = {
    "malformed": ([PLAN, use("ok"), "x", "x", "x"], {}, "error", ParseError, "no usable answer"),
    "model error": ([PLAN, use("ok"), "gone"], {}, "error", Exception, "connection reset"),
    "max_iterations": ([PLAN, use("ok"), unmet()], {"max_iterations": 3}, "incomplete", None, "3 iterations"),
    "budget": ([PLAN, use("ok")], {"limits": Limits(model_calls=2)}, "incomplete", LimitReached, "model calls"),
    "tool calls": (
        [PLAN, use("ok"), use("ok", n=2)], {"limits": Limits(tool_calls=1)}, "incomplete", LimitReached, "tool calls",
    ),
    "timeout": ([PLAN, use("ok"), "hang"], {"timeout": 5}, "incomplete", DeadlineExceeded, "5 s"),
    "seconds": ([PLAN, use("ok"), "hang"], {"limits": Limits(seconds=5)}, "incomplete", LimitReached, "seconds"),
    "model timeout": (
        [PLAN, use("ok"), "hang"], {"limits": Limits(model_timeout=5)}, "error", ModelTimeout, "no answer within 5 s",
    ),
    "detected loop": (
        [PLAN, *[use("ok")] * 20], {"limits": Limits(max_repeated_calls=20)}, "incomplete", None, "no progress",
    ),
    "identical calls": (
        [PLAN, *[use("ok")] * 20], {"limits": Limits(max_repeated_calls=2)}, "incomplete", LimitReached, "identical calls",
    ),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
async def test_every_end_of_a_run_keeps_its_results(end, autojump_clock):
    """Status and error state how the run ended; state, results, tools, history and metrics are returned."""
    script, options, status, failure, text = ENDS[end]
    result = await run_agent("find v", Gone(script), tools=[ok], **options)
    assert (result.status, result.achieved, result.data) == (status, False, None)
    assert text in result.error
    assert isinstance(result.failure, failure) if failure else result.failure is None
    assert (result.raw_data, result.used_tools) == ({"v": 1}, ("ok",))
    assert result.tool_results[0].error is None
    assert result.text.startswith("The goal was not achieved: ")
    assert '- ok: {"v": 1}' in result.text
    assert (result.metrics.tools["ok"].successful_calls >= 1, result.history[0].text) == (True, "find v")


async def test_tools_that_fail_are_part_of_an_unachieved_result():
    """A run in which no tool worked ends with the errors of the tools."""
    result, _ = await run(use("broken"), "x", "x", "x", tools=[broken])
    assert (result.status, result.raw_data) == ("error", {})
    assert result.tool_results[0].error.endswith("it is broken")


async def test_results_of_native_calls_survive_a_model_error():
    """The protocol has not parsed these calls when the model fails."""
    result = await run_agent("find v", Gone([ToolCall("ok", {"n": 4}), "gone"]), tools=[ok])
    assert (result.status, result.raw_data, result.used_tools) == ("error", {"v": 4}, ("ok",))


async def test_an_error_after_the_goal_is_achieved_keeps_the_achievement():
    """The evaluation counts; only the answer of the declared type is missing."""
    result = await run_agent("find v", Gone([*WAY, "gone"]), tools=[ok], output=Found)
    assert (result.status, result.achieved, result.data, result.text) == ("error", True, None, "v is 1")


async def test_cancellation_of_a_run_propagates(autojump_clock):
    """A cancel scope of the caller ends the run without a result."""
    with trio.move_on_after(5) as scope:
        await run_agent("find v", Gone([PLAN, "hang"]), tools=[ok])
        pytest.fail("the run was to be cancelled")
    assert scope.cancelled_caught


async def test_configuration_mistakes_raise_before_the_first_model_call():
    """The goal could not be worked on with such a configuration."""
    llm = ScriptedLLM([PLAN])
    for options in ({"tools": ["ok"]}, {"max_iterations": 0}, {"limits": Limits(cost=1.0)}, {"output": 3}):
        with pytest.raises(ConfigurationError):
            await run_agent("find v", llm, **options)
    with pytest.raises(ConfigurationError, match="the goal must be a string"):
        await run_agent(3, llm)
    assert llm.chats == []


async def test_run_goal_returns_the_result_of_each_goal():
    """The second goal has separate progress. A failed goal does not report the success of the first one."""
    script = [*WAY, "x", "x", "x", ToolCall("ok", {"n": 7}), "gone"]
    async with GoalAgent("tutor", llm=Gone(script), tools=[ok]) as agent:
        session = await agent.create_session("ada")
        first = await agent.run_goal("find v", session=session)
        second = await agent.run_goal("find w", session=session)
        third = await agent.run_goal("find x", session=session)
    assert (first.status, first.achieved, first.iterations) == ("completed", True, 4)
    assert (second.status, second.achieved, second.used_tools, second.iterations) == ("error", False, (), 3)
    assert (third.status, third.used_tools, third.raw_data) == ("error", ("ok",), {"v": 7})
    assert len(third.tool_results) == 1


async def test_run_goal_without_a_session_closes_its_session():
    """The session is closed also if the run is cancelled."""
    sessions = []
    async with GoalAgent("tutor", llm=ScriptedLLM(WAY), tools=[ok]) as agent:
        agent.on_session(sessions.append)
        result = await agent.run_goal("find v", sender="ada")
        assert (result.achieved, result.history[0].sender.name) == (True, "ada")
        assert [each.status for each in sessions] == ["closed"]
    with pytest.raises(NotRunning):
        await agent.run_goal("find v")


async def test_run_agent_accepts_custom_actions():
    """A custom action changes the state, and its value is in the result."""
    note = CustomAction("note", "Write a note.", lambda _, params: ("note", params["text"]))
    result, llm = await run(PLAN, act("note", text="hi"), ACHIEVED, actions=[note])
    assert (result.status, result.raw_data) == ("completed", {"note": "hi"})
    assert "note" in unsaid(llm.chats[1])


def test_run_agent_sync_works_in_a_script():
    """`run_agent_sync` returns the same result for the same arguments, without an event loop of the caller."""
    result = run_agent_sync("find v", ScriptedLLM(WAY), tools=[ok], max_iterations=9)
    assert (result.data, result.max_iterations) == ("v is 1", 9)


def test_run_agent_sync_is_rejected_in_a_running_event_loop():
    """In trio and in asyncio the error states the call to use."""

    async def in_a_loop():
        run_agent_sync("find v", ScriptedLLM(WAY), tools=[ok])

    with pytest.raises(UsageError, match="await run_agent"):
        trio.run(in_a_loop)
    with pytest.raises(UsageError, match=r"asyncio\.to_thread"):
        asyncio.run(in_a_loop())


async def test_five_failed_evaluations_end_the_run():
    """Case 9 (want): the run stops, and its results do not make it a success."""
    tools = dict.fromkeys(("a", "b", "c"), ok)
    script = [PLAN, use("a"), use("b"), use("c"), SUMMARY]
    for n in range(5):
        script += [unmet(missing_items=["w"]), PLAN, use("a", n=n), SUMMARY]
    result, llm = await run(*script, tools=tools, max_iterations=40)
    assert (result.status, result.achieved, result.data) == ("incomplete", False, None)
    assert "5 evaluations in a row" in result.error
    assert result.text.startswith("The goal was not achieved: 5 evaluations")
    assert "v is 1" in result.text
    assert len(llm.chats) == 5 + 4 * 4 + 1


async def test_limit_with_results_requests_a_summary_and_an_evaluation():
    """Case 20: the result has everything that was found."""
    last = unmet(missing_items=["w"], answer="v is 1")
    result, llm = await run(use("ok"), last, max_iterations=2)
    assert result.status == "completed_with_summary_fallback"
    assert (result.iterations, result.max_iterations, len(llm.chats)) == (2, 2, 2)
    assert result.evaluation == {
        "achieved": False, "feedback": "not yet", "missing_items": ["w"], "answer": "v is 1"
    }  # fmt: skip
    assert result.raw_data == {"v": 1}
    assert not result.achieved
    assert result.text == (
        "The goal was not achieved: the limit of 2 iterations was reached (max_iterations=2).\n\nv is 1\n\nMissing: w"
    )
    assert "The limit is reached" in unsaid(llm.chats[1])


async def test_evaluation_at_the_limit_may_achieve_the_goal():
    """No other step can achieve the goal at the limit."""
    result, _ = await run(PLAN, use("ok"), ACHIEVED, max_iterations=3)
    assert (result.status, result.achieved, result.error) == ("completed_with_summary_fallback", True, None)
    result, _ = await run(*WAY, max_iterations=4)  # on its own way, with the last call
    assert (result.status, result.achieved) == ("completed", True)


async def test_goal_achieved_at_the_limit_has_its_output_type():
    """A goal that is not achieved has no data."""
    result, _ = await run(PLAN, use("ok"), ACHIEVED, '{"answer": "1"}', output=Found, max_iterations=4)
    assert (result.status, result.data) == ("completed_with_formatting", Found("1"))
    result, llm = await run(PLAN, use("ok"), ACHIEVED, "{}", output=Found, max_iterations=4)
    assert (result.status, result.achieved, len(llm.chats)) == ("completed_without_formatting", True, 4)
    result, _ = await run(use("ok"), ACHIEVED, output=Found, max_iterations=2)
    assert (result.status, result.achieved, result.data) == ("completed_without_formatting", True, None)
    result, _ = await run(PLAN, use("ok"), unmet(answer="v is 1"), output=Found, max_iterations=4)
    assert (result.status, result.achieved) == ("completed_with_summary_fallback", False)
    assert (result.data, "v is 1" in result.text) == (None, True)


async def test_model_that_repeats_evaluations_is_stopped():
    """Repeated evaluations without results achieve nothing, and the run ends at the limit or before."""
    llm = ScriptedLLM(lambda _: ACHIEVED)
    result = await run_agent("find v", llm, tools=[ok], max_iterations=3)
    assert (result.status, result.achieved, result.data) == ("incomplete", False, None)
    assert result.error == "the limit of 3 iterations was reached (max_iterations=3)"
    assert (result.iterations, len(llm.chats)) == (3, 3)
    result = await run_agent("find v", llm, tools=[ok])
    assert (result.status, result.achieved, result.iterations) == ("incomplete", False, MAX_STALLED)
    assert result.error == "no progress: 6 decisions in a row brought nothing new"


async def test_example_loop_takes_two_calls():
    """The example decides, acts and evaluates. A loop that repeats this is not stopped as a cycle."""
    result, llm = await run(use("ok"), ACHIEVED)
    assert (result.status, result.iterations, len(llm.chats)) == ("completed", 2, 2)
    script = [step for n in range(3) for step in (use("ok", n=n), unmet())]
    result, llm = await run(*script, use("ok", n=9), ACHIEVED)
    assert (result.status, len(llm.chats)) == ("completed", 8)
    assert not any("not possible" in message.text for message in result.history)


async def test_an_action_without_a_result_can_reach_a_goal():
    """A tool without a result value is enough for an evaluation."""
    result, _ = await run(use("none"), act("evaluate", achieved=True, answer="It is sent."), tools=[none])
    assert (result.status, result.text) == ("completed", "It is sent.")


async def test_six_iterations_are_six_calls():
    """The caller's limit counts all model calls of any kind; the error names the caller's argument."""
    ways = {
        "acts and judges": [step for n in range(9) for step in (use("ok", n=n), unmet())],
        "plans and acts": [PLAN, *(use("ok", n=n) for n in range(20))],
        "calls natively": [ToolCall("ok", {"n": n}) for n in range(20)],
        "writes nonsense": [PLAN, use("ok"), SUMMARY, unmet(), "hm", *["hm"] * 9],
    }
    for way, script in ways.items():
        for limits in (None, Limits(model_calls=50)):
            result, llm = await run(*script, max_iterations=6, limits=limits)
            assert (way, len(llm.chats), result.iterations, result.achieved) == (way, 6, 6, False)
            assert "max_iterations=" in result.error
            assert "model_calls=" not in result.error


async def test_repeated_cycle_of_calls_ends_the_run():
    """A cycle of five calls, longer than the checked last actions, ends when it repeats."""
    script = [use("ok", n=n % 5) for n in range(40)]
    result, llm = await run(*script, max_iterations=40, limits=Limits(max_repeated_calls=20))
    assert (result.status, len(llm.chats)) == ("incomplete", 5 + MAX_STALLED)
    assert result.error == "no progress: 6 decisions in a row brought nothing new"
    assert "brought nothing new; 6 end it" in unsaid(llm.chats[-1])
    assert "- ok: " in result.text


@pytest.mark.parametrize("insists", [use("ok"), PLAN, act("evaluate", achieved=False, feedback="no")])
async def test_evaluation_at_the_iteration_limit_is_requested_once(insists):
    """A model that continues to act has used all its calls, and the results so far are kept."""
    result, llm = await run(
        PLAN, use("ok"), *[insists] * 20, max_iterations=6, limits=Limits(max_repeated_calls=20)
    )
    assert (result.status, result.achieved, result.iterations) == ("incomplete", False, 6)
    assert len(llm.chats) == 6
    assert '- ok: {"v": 1}' in result.text


async def test_a_summary_at_the_limit_is_not_lost():
    """A summary with the last call, or any other step instead of its evaluation, ends the goal with the summary."""
    result, llm = await run(PLAN, use("ok"), SUMMARY, max_iterations=3)
    assert (result.status, len(llm.chats)) == ("incomplete", 3)
    assert "v is 1" in result.text
    result, llm = await run(PLAN, use("ok"), SUMMARY, use("ok"), max_iterations=4)
    assert (result.status, len(llm.chats)) == ("incomplete", 4)
    assert "v is 1" in result.text


async def test_limit_without_results_requests_no_evaluation():
    """Case 5: nothing was found to evaluate, and the result has no additional keys."""
    result, llm = await run(use("none"), unmet(), tools=[none], max_iterations=2)
    assert (result.status, result.data, result.achieved) == ("incomplete", None, False)
    assert result.error == "the limit of 2 iterations was reached (max_iterations=2)"
    assert result.raw_data == {}
    assert len(llm.chats) == 2


@pytest.mark.parametrize(
    ("limits", "asked", "ran"),
    [
        (Limits(model_calls=5), 5, 5),
        (Limits(tool_calls=4), 5, 4),
        (Limits(max_repeated_calls=1), 2, 1),
        (Limits(tokens=40_000), 8, 8),
    ],
    ids=["model_calls", "tool_calls", "max_repeated_calls", "tokens"],
)
async def test_limits_bound_a_goal(limits, asked, ran):
    """The results so far are returned, with the reached limit and the number of calls."""
    wish = (ToolCall("ok", {"n": 1 if limits.max_repeated_calls == 1 else n}) for n in range(100))

    def answer(_):
        return ModelResponse(parts=(next(wish),), stop="tool_calls", usage=Usage(input_tokens=5_000))

    llm = ScriptedLLM(answer)
    result = await run_agent("find v", llm, tools=[ok], limits=limits)
    assert (result.status, result.achieved, len(llm.chats)) == ("incomplete", False, asked)
    assert "limit" in result.error
    assert len([each for each in result.tool_results if each.status == "success"]) == ran
    assert result.iterations == asked


async def test_a_model_that_only_calls_tools_is_stopped():
    """Native calls never reach the protocol; at the hard limit the results so far are returned nevertheless."""
    calls = iter(range(1000))
    llm = ScriptedLLM(lambda _: ToolCall("ok", {"n": next(calls)}))
    result = await run_agent("find v", llm, tools=[ok], max_iterations=3)
    assert (result.status, result.achieved) == ("incomplete", False)
    assert len(llm.chats) == 3
    assert result.raw_data == {"v": 2}
    assert "limit" in result.error
    assert result.text.startswith("The goal was not achieved: the turn reached its limit")
    assert "raise max_iterations=" in result.text
    assert result.text.endswith('- ok: {"v": 2}')
    assert result.used_tools == ("ok",)


async def test_limit_of_identical_calls_ends_a_goal():
    """The result reports the limit."""
    result, _ = await run(PLAN, use("ok"), use("ok"), use("ok"), use("ok"))
    assert (result.status, result.achieved) == ("incomplete", False)
    assert "identical calls" in result.text


# --- state -----------------------------------------------------------------------------------


async def test_tool_results_update_the_goal_state():
    """Case 1: a pair, a list of pairs, None; a malformed return leaves the state unchanged."""

    def several(state, args):
        return [("a", 1), ("b", 2)]

    def wrong(state, args):
        return [("a", 7), "b"]

    result, _ = await run(
        PLAN,
        use("ok"),
        use("several"),
        use("none"),
        use("wrong"),
        SUMMARY,
        ACHIEVED,
        tools=[ok, several, none, wrong],
    )
    assert result.raw_data == {"v": 1, "a": 1, "b": 2}


async def test_tools_get_a_copy_of_the_state():
    """Case 2 (want), weakness 7: only the return value of a tool changes the state."""
    seen = []

    def first(state, args):
        return ("list", [1])

    async def spoil(state, args):
        seen.append(list(state["list"]))
        state["list"].append(2)
        state["more"] = True

    result, _ = await run(PLAN, use("first"), use("spoil"), SUMMARY, ACHIEVED, tools=[first, spoil])
    assert result.raw_data == {"list": [1]}
    assert seen == [[1]]


async def test_tools_cannot_achieve_the_goal():
    """`achieved` in the state is a key like any other. The fields of the loop cannot be changed by tools."""

    def cheat(state, args):
        return (args["key"], {"achieved": True})

    result, _ = await run(
        PLAN,
        use("cheat", key="achieved"),
        use("cheat", key=STATE_KEY),
        SUMMARY,
        unmet(),
        tools=[cheat],
        max_iterations=5,
    )
    assert not result.achieved
    assert result.tool_results[1].status == "error"


async def test_goal_accepts_all_kinds_of_tools():
    """The tools are functions of the state and other functions, async or not, with chosen names."""

    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    async def later(state, args):
        return ("later", True)

    def context(wanted: str, context: ToolContext) -> str:
        return f"{wanted} of {context.agent}"

    tools = {"add": add, "soon": later, "context": context}
    calls = [
        {"tool": "add", "args": {"a": 2, "b": 3}},
        {"tool": "soon"},
        {"tool": "context", "args": {"wanted": "x"}},
    ]
    result, llm = await run(PLAN, act("execute", calls=calls), ACHIEVED, tools=tools)
    assert [made.text for made in result.tool_results] == ["5", '{"later": true}', "x of goal"]
    assert "- soon(): Soon" in llm.chats[0].system
    with pytest.raises(ConfigurationError):
        await run(PLAN, tools=["ok"])


async def test_each_message_of_a_session_is_a_separate_goal():
    """Record and data are shared."""
    llm = ScriptedLLM([*WAY, *WAY])
    async with GoalAgent("tutor", llm=llm, tools=[ok]) as agent:
        session = await agent.create_session("ada")
        await agent.run("find v", session=session)
        reply = await agent.run("find it again", session=session)
        progress = progress_in(session.state)
    assert reply.message_type == "completed"
    assert (progress.goal, progress.iterations) == ("find it again", 4)


async def test_the_prompt_does_not_grow_with_the_state():
    """State and earlier prompts are not repeated, and the prefix never changes (weakness 7)."""
    _, llm = await run(*WAY)
    for earlier, later in zip(llm.chats, llm.chats[1:], strict=False):
        assert later.system == earlier.system
        assert later.messages[: len(earlier.messages) - 1] == earlier.messages[:-1]


async def test_limits_of_an_agent_end_a_goal_as_a_failure():
    """`agent.run` raises an error where `run_agent` returns a result."""
    llm = ScriptedLLM(lambda chat: ToolCall("ok", {"n": len(chat.messages)}))
    async with GoalAgent("tutor", llm=llm, tools=[ok], max_iterations=1) as agent:
        with pytest.raises(LimitReached):
            await agent.run("find v")


async def test_any_agent_can_have_the_protocol():
    """The protocol brings the loop, and the agent its tools."""
    llm = ScriptedLLM([PLAN, SUMMARY, ACHIEVED])
    kinds = [ClassificationType(name="unused")]
    async with Agent("tutor", llm=llm, protocol=Goal(max_iterations=5), types=kinds) as agent:
        assert (await agent.run("find v")).text == "v is 1"


async def test_tools_that_are_added_later_count():
    """The loop offers tools that an agent without tools gets later."""
    llm = ScriptedLLM([PLAN, use("look"), act("summarize", summary="a fjord"), ACHIEVED])

    @tool
    def look() -> str:
        """Look around."""
        return "a fjord"

    async with GoalAgent("worker", llm=llm) as agent:
        agent.tools.add(look)
        assert str(await agent.run("what is there?")) == "a fjord"
    assert "- look(): Look around." in unsaid(llm.chats[0])
    assert len({chat.system for chat in llm.chats}) == 1


# --- output handlers ---------------------------------------------------------------------------


class Report(BaseModel):
    results: list
    metadata: dict
    v: int


def to_report(state):
    return Report(results=state.get("results", []), metadata={"goal": state["goal"]}, v=state.get("v", 0))


async def test_output_handler_makes_data_from_the_state():
    """The handler gets the state as tools see it, at every end of a run. No further model call is made."""
    found = Report(results=[{"tool": "ok", "result": {"v": 1}}], metadata={"goal": "find v"}, v=1)
    result, llm = await run(*WAY, output=to_report)
    assert (result.status, result.data, len(llm.chats)) == ("completed", found, len(WAY))
    result, _ = await run(PLAN, use("ok"), "x", "x", "x", output=to_report)
    assert (result.status, result.data) == ("error", found)
    async with GoalAgent("a", llm=ScriptedLLM([*WAY, *WAY]), tools=[ok], output=to_report) as agent:
        assert (await agent.run_goal("find v")).data == found
        assert (await agent.run_goal("find v", output=lambda state: state["v"])).data == 1


async def test_an_output_handler_that_raises_is_an_error_of_the_result():
    """The results are returned nevertheless. An async handler is rejected."""
    result, _ = await run(*WAY, output=lambda state: state["missing"])
    assert (result.status, result.data, result.raw_data) == ("completed_without_formatting", None, {"v": 1})
    assert "the output handler failed: KeyError" in result.error

    async def slow(state):
        return state

    with pytest.raises(ConfigurationError, match="sync"):
        await run(*WAY, output=slow)
