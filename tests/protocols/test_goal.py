"""The goal loop's protocol in isolation: its forms, its transitions, and the answers that it rejects."""

import json

import attrs
import pytest

from actgent.errors import ConfigurationError, EmptyAnswer, ParseError
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Message, Sender, Text, ToolCall, ToolResult, ToolSpec
from actgent.protocols.goal.goal_decision_parsing import CustomAction
from actgent.protocols.goal.goal_progress import (
    MAX_STALLED,
    Progress,
    apply_messages,
    detect_action_loop,
    progress_in,
    progress_of,
    stored_progress,
)
from actgent.protocols.goal.goal_protocol import TRANSITIONS, Goal, offered_actions, rejection_reason
from actgent.protocols.prompt_rendering import PromptManager
from actgent.protocols.protocol_interface import CallTools, Continue, Profile, SendReply, UpdateState

from .conftest import view

TOOLS = Profile(tools=[ToolSpec("ok", "Gives one.", {"type": "object"})])
GOOD = {
    "plan": {"steps": ["use ok"], "strategy": "the only way"},
    "execute": {"tool": "ok", "args": {"n": 1}},
    "summarize": {"summary": "all of it"},
    "evaluate": {"achieved": True, "feedback": "well done", "missing_items": [], "suggestions": []},
}
PHASE_OF = {"plan": "initial", "execute": "planning", "summarize": "executing", "evaluate": "summarizing"}


def decided(action, params=None, **others):
    return json.dumps({"action": action, "params": params or {}, "reasoning": "because", **others})


def at(phase, *, profile=TOOLS, record=(), **fields):
    """Return a view of a turn in a phase."""
    message = Message(session_id="s", sender=Sender("ada"), parts=(Text("find v"),))
    summary = "all of it" if phase == "summarizing" else ""
    progress = Progress(
        **{
            "summary": summary,
            "turn": message.id,
            "goal": "find v",
            "start": 0,
            "mark": 1,
            "phase": phase,
            "found": 1,
            **fields,
        }
    )
    return view(
        message=message, record=[message, *record], state=dict([stored_progress(progress)]), profile=profile
    )


def read(text, seen, protocol=None):
    return (protocol or Goal()).read(ModelResponse(parts=(Text(text),)), seen)


def changed(outcomes, seen):
    """Return the progress after some outcomes."""
    state = dict(seen.state)
    for outcome in outcomes:
        if isinstance(outcome, UpdateState):
            made = outcome.action(state)
            state.update([made] if isinstance(made, tuple) else made)
    return progress_in(state)


# --- the forms -----------------------------------------------------------------------------


@pytest.mark.parametrize("action", GOOD)
def test_each_decision_is_carried_out(action):
    """Case 25: a decision with its params changes to its phase in one model call."""
    seen = at(PHASE_OF[action])
    outcomes = read(decided(action, GOOD[action]), seen)
    progress = changed(outcomes, seen)
    assert progress.phase == {
        "plan": "planning", "execute": "executing", "summarize": "summarizing", "evaluate": "ended"
    }[action]  # fmt: skip
    assert progress.achieved == (action == "evaluate")


@pytest.mark.parametrize(
    "text",
    [
        '{"action": "plan", "parameters": {"steps": ["a"]}}',
        '```json\n{"action": "plan", "params": {"steps": ["a"]}}\n```',
        'Here it is: {"action": "plan", "params": {"steps": ["a"]}} and so on.',
        "{'action': 'plan', 'params': {'steps': ['a']}}",
    ],
)
def test_params_are_parsed_from_surrounding_text(text):
    """Case 25 (want): `parameters`, fences, prose and single quotes are accepted."""
    seen = at("initial")
    assert changed(read(text, seen), seen).plan == ["a"]


@pytest.mark.parametrize("text", ["null", "[]", "[1]", '"plan"', "just text", '{"action": "plan", "params'])
def test_invalid_decision_is_retried(text):
    """Case 25 (want), case 8: truncated, null, list and text are errors, never an invented plan."""
    with pytest.raises(ParseError):
        read(text, at("initial"))


def test_two_different_decisions_are_rejected():
    """Two different plans are rejected because a choice would be a guess. Params under both names are also rejected."""
    two = decided("plan", {"steps": ["a"]}) + "\n" + decided("plan", {"steps": ["b"]})
    with pytest.raises(ParseError, match="2 different"):
        read(two, at("initial"))
    with pytest.raises(ParseError, match="one object"):
        read('{"action": "plan", "params": {"steps": ["a"]}, "parameters": {"steps": ["b"]}}', at("initial"))


@pytest.mark.parametrize(
    ("action", "params", "reason"),
    [
        ("plan", {"steps": []}, "steps"),
        ("plan", {"steps": [" "]}, "steps"),
        ("plan", {"steps": "do it"}, "steps"),
        ("execute", {}, "names its tool"),
        ("execute", {"tool": ""}, "names its tool"),
        ("execute", {"tool": "ok", "args": "n=1"}, "must be an object"),
        ("execute", {"calls": []}, "list of such"),
        ("execute", {"calls": [{"tool": "ok"}, {"args": {}}]}, "names its tool"),
        ("summarize", {"summary": " "}, "must be text"),
        ("evaluate", {"achieved": "true"}, "true or false"),
        ("evaluate", {"achieved": 1}, "true or false"),
        ("evaluate", {"feedback": "good"}, "true or false"),
        ("evaluate", {"achieved": True, "missing_items": ["b"]}, "nothing can be missing"),
        ("evaluate", {"achieved": False, "suggestions": "try"}, "list of texts"),
        ("evaluate", {"achieved": False, "feedback": 3}, "must be text"),
    ],
)
def test_invalid_params_are_retried(action, params, reason):
    """Invalid params are retried with the reason."""
    with pytest.raises(ParseError, match=reason):
        read(decided(action, params), at(PHASE_OF[action]))


def test_execute_accepts_concurrent_calls():
    """`execute` accepts several calls, also in the provider's form as text."""
    expected = {"calls": [{"tool": "ok", "args": {"n": 1}}, {"tool": "ok", "args": {"n": 2}}]}
    *_, calls = read(decided("execute", expected), at("planning"))
    assert calls.calls == [ToolCall("ok", {"n": 1}, native=False), ToolCall("ok", {"n": 2}, native=False)]
    encoded = '[{"id": "c1", "type": "function", "function": {"name": "ok", "arguments": "{\\"n\\": 1}"}}]'
    *_, calls = read(encoded, at("planning"))
    assert [call.name for call in calls.calls] == ["ok"]


def test_provider_calls_run_like_protocol_calls():
    """Calls in the provider's form run like calls in the protocol's form, also before a plan. After the limit no call runs."""
    encoded = '[{"id": "c1", "type": "function", "function": {"name": "ok", "arguments": "{}"}}]'
    assert isinstance(read(encoded, at("initial"))[-1], CallTools)
    outcomes = read(encoded, at("executing", calls=4), Goal(max_iterations=5))
    assert not any(isinstance(outcome, CallTools) for outcome in outcomes)


def malformed():
    """Return answers that are cut, fenced, empty, in wrong case, or with other keys."""
    for action, params in GOOD.items():
        whole = decided(action, params)
        seen = at(PHASE_OF[action])
        for cut in range(1, len(whole), 7):
            yield seen, whole[:cut]
        for text in (
            whole.upper().replace("TRUE", "true"),
            whole.replace(action, action.title(), 1),
            whole.replace('"action"', '"Action"', 1),
            whole.replace('"params"', '"Params"', 1) if action == "execute" else whole.replace(":", "=", 1),
            "```json\n" + whole[:-9],
            "```" + whole[: len(whole) // 2] + "\n```",
            json.dumps([json.loads(whole)]),
            json.dumps({"decision": json.loads(whole)}),
            "",
            "  \n",
            "<think>" + whole,
            f"answer({whole})",
        ):
            yield seen, text


def test_malformed_goal_answers_have_no_effect():
    """More than a hundred malformed answers produce no plan, no action and no success."""
    answers = list(malformed())
    assert len(answers) > 100
    for seen, text in answers:
        with pytest.raises((ParseError, EmptyAnswer)):
            read(text, seen)


@pytest.mark.parametrize("action", ["plan", "execute", "summarize"])
def test_unknown_keys_of_a_decision_have_no_effect(action):
    """`achieved` outside of the evaluation's params has no effect. Next to a call it is rejected."""
    seen = at(PHASE_OF[action])
    extra = {"achieved": True, "status": "completed", "goal_achieved": True}
    inside = {} if action == "execute" else extra
    outcomes = read(decided(action, {**GOOD[action], **inside}, **extra), seen)
    progress = changed(outcomes, seen)
    assert (progress.achieved, progress.status) == (False, "")
    assert not any(isinstance(outcome, SendReply) for outcome in outcomes)


# --- the table -----------------------------------------------------------------------------


def test_each_phase_offers_its_actions():
    """Each phase offers its actions after a result was found."""
    progress = Progress(turn="t", goal="g", start=0, mark=0, found=1)
    rows = {
        phase: offered_actions(attrs.evolve(progress, phase=phase), has_tools=True) for phase in TRANSITIONS
    }
    assert rows == {
        "initial": ["plan", "execute"],
        "planning": ["execute"],
        "executing": ["execute", "summarize", "evaluate"],
        "summarizing": ["evaluate"],
        "evaluating": ["plan", "execute"],
    }


def test_no_evaluation_is_offered_before_the_first_action():
    """Case 15 of the seed's document: before the first action neither a summary nor an evaluation is offered."""
    progress = Progress(turn="t", goal="g", start=0, mark=0, phase="executing")
    assert offered_actions(progress, has_tools=True) == ["execute"]
    assert "nothing was done" in rejection_reason("evaluate", progress, has_tools=True)
    assert "nothing was done" in rejection_reason("summarize", progress, has_tools=True)
    # A tool without a result can have achieved the goal.
    used = attrs.evolve(progress, used_tools=["mail"])
    assert offered_actions(used, has_tools=True) == ["execute", "summarize", "evaluate"]
    assert "evaluate" in offered_actions(attrs.evolve(progress, summary="s"), has_tools=True)


def test_no_action_is_offered_again_without_new_results():
    """Cases 16, 17, 19: without new results, no second summary or evaluation is offered. A plan can follow a failed evaluation."""
    progress = Progress(turn="t", goal="g", start=0, mark=0, phase="summarizing", found=2, summary="s")
    assert offered_actions(progress, has_tools=True) == ["evaluate"]
    after = offered_actions(attrs.evolve(progress, phase="evaluating"), has_tools=True)
    assert "evaluate" not in after
    assert after[0] == "plan"


def test_a_failed_tool_may_change_the_plan():
    """After a failed tool a new plan is offered. A plan that the model makes without an offer is accepted."""
    progress = Progress(turn="t", goal="g", start=0, mark=0, phase="executing", found=1)
    assert "plan" in offered_actions(attrs.evolve(progress, has_failed=True), has_tools=True)
    assert "plan" not in offered_actions(progress, has_tools=True)
    assert rejection_reason("plan", progress, has_tools=True) is None


def test_goal_without_tools_is_summarized_and_evaluated():
    """A goal without tools is planned, summarized and evaluated."""
    progress = Progress(turn="t", goal="g", start=0, mark=0, phase="planning")
    assert offered_actions(progress, has_tools=False) == ["summarize"]
    assert "no tools" in rejection_reason("execute", progress, has_tools=False)
    assert "summed up" in rejection_reason("evaluate", progress, has_tools=False)


def test_a_refused_action_is_not_replaced():
    """Case 15: the model gets the reason why the action is not possible now. No other action runs."""
    seen = at("planning", found=0)
    outcomes = read(decided("evaluate", {"achieved": True}), seen)
    progress = changed(outcomes, seen)
    assert (progress.phase, progress.achieved, progress.stalled) == ("planning", False, 1)
    assert outcomes[-1] == Continue(
        "planning",
        "evaluate is not possible now: nothing was done yet that could be judged. Possible: execute.",
    )


def test_the_order_of_the_example_is_accepted():
    """The seed's order is decide, act, evaluate. It needs no plan and no summary."""
    seen = at("initial", found=0)
    outcomes = read(decided("execute", GOOD["execute"]), seen)
    assert isinstance(outcomes[-1], CallTools)
    seen = at("executing", used_tools=["ok"])
    outcomes = read(decided("evaluate", GOOD["evaluate"]), seen)
    assert changed(outcomes, seen).status == "completed"
    again = at("evaluating", unmet=1)  # a second evaluation without an action in between
    outcomes = read(decided("evaluate", {"achieved": False}), again)
    assert (changed(outcomes, again).unmet, outcomes[-1].note) == (2, "")


@pytest.mark.parametrize(
    ("action", "fields"),
    [("plan", {"plan": ["old"]}), ("summarize", {"summary": "old"}), ("execute", {}), ("evaluate", {})],
)
def test_sixth_decision_without_progress_ends_the_loop(action, fields):
    """The sixth consecutive decision without progress is not executed. The loop ends with the reason."""
    call = ToolCall("ok", {"n": 1})
    fresh = Progress(turn="t", goal="g", start=0, mark=0)
    fresh.add_call(call)
    if action == "execute":
        fields = {"course": fresh.course}
    params = {"achieved": False} if action == "evaluate" else GOOD[action]
    for stalled, goes_on in ((MAX_STALLED - 2, True), (MAX_STALLED - 1, False)):
        course = fields.get("course", "") + "." * stalled
        seen = at("evaluating", **{**fields, "course": course})
        outcomes = read(decided(action, params), seen)
        progress = changed(outcomes, seen)
        assert progress.stalled == stalled + 1
        assert any(isinstance(outcome, Continue | CallTools) for outcome in outcomes) is goes_on
        assert ("no progress" in (progress.error or "")) is not goes_on


def test_new_call_or_result_is_progress():
    """A new call or result resets the detection of cycles of any length."""
    progress = Progress(turn="t", goal="g", start=0, mark=0)
    for n in range(5):
        progress.add_call(ToolCall("ok", {"n": n}))
    assert progress.stalled == 0
    for n in range(5):
        progress.add_call(ToolCall("ok", {"n": n}))
    assert progress.stalled == 5
    record = [said(TOOL, ToolResult(call_id="c1", tool_name="ok", content="something else"))]
    apply_messages(progress, record, end=1)
    assert progress.stalled == 0


def test_progress_of_an_earlier_version_is_read():
    """Progress that an earlier version stored is read. Counters with a changed meaning start at zero."""
    old = {
        "turn": "t",
        "goal": "find v",
        "start": 0,
        "mark": 5,
        "calls": 3,
        "phase": "ended",
        "iterations": 4,
    }
    progress = progress_in({"_goal": {**old, "actions": ["a"], "status": "completed"}})
    assert (progress.iterations, progress.actions, progress.stalled) == (4, ["a"], 0)


def test_unknown_action_is_retried():
    """Weakness 8: an unknown action is retried and not read as an evaluation."""
    with pytest.raises(ParseError, match="unknown action 'finalize'"):
        read(decided("finalize"), at("executing"))


# --- the prompts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "role"),
    [
        ("initial", "planner"),
        ("planning", "executor"),
        ("executing", "executor"),
        ("summarizing", "evaluator"),
        ("finalizing", "finalizer"),
    ],
)
def test_each_stage_calls_the_model_of_its_role(phase, role):
    assert Goal(output={"answer": "<the answer>"}).request(at(phase)).model == role


def test_prompt_names_only_the_possible_action():
    """If one action is possible, the prompt names only that action. The last call asks for an evaluation with an answer."""
    tail = Goal().request(at("summarizing")).tail
    assert "this action, and no other:\n- evaluate" in tail
    assert "execute" not in tail
    closing = Goal(max_iterations=5).request(at("executing", calls=4))
    assert closing.model == "evaluator"
    assert "and no other:\n- evaluate" in closing.tail
    assert "achieved or not" in closing.tail


def test_missing_params_are_supplied_by_the_model_of_the_role():
    """An action without params is kept, and the model of its role supplies the params."""
    seen = at("executing")
    outcomes = read(decided("summarize"), seen)
    progress = changed(outcomes, seen)
    assert (progress.asked, progress.phase, progress.summary) == ("summarize", "executing", "")
    request = Goal().request(at("executing", asked="summarize"))
    assert request.model == "summarizer"
    assert "no other:\n- summarize" in request.tail
    with pytest.raises(ParseError, match="summary must be text"):
        read(decided("summarize"), at("executing", asked="summarize"))


def test_feedback_stays_until_the_goal_is_reached():
    """Case 10: the next prompts contain feedback, missing items, suggestions and unused tools."""
    evaluation = {
        "achieved": False,
        "feedback": "too thin",
        "missing_items": ["b"],
        "suggestions": ["use more"],
    }
    profile = Profile(tools=[ToolSpec(name, "", {}) for name in ("ok", "more")])
    seen = at("executing", profile=profile, evaluation=evaluation, used_tools=["ok"])
    tail = Goal().request(seen).tail
    for expected in (
        "not achieved. too thin",
        "Missing: b.",
        "Suggestions: use more.",
        "not used yet: more.",
    ):
        assert expected in tail


def test_prompt_contains_a_hint_during_a_cycle():
    """The prompt contains a hint while the last actions are a cycle."""
    assert "in circles" in Goal().request(at("executing", actions=["a", "a"])).tail
    assert "in circles" not in Goal().request(at("executing", actions=["a", "b"])).tail


@pytest.mark.parametrize(
    ("recent", "loops"),
    [
        ([], False),
        (["a"], False),
        (["a", "a"], True),
        (["plan", "execute"], False),
        (["x", "x", "x"], True),
        (["execute", "evaluate", "evaluate"], True),
        (["a", "b", "a", "b"], True),
        (["a", "b", "a"], False),
        (["a", "b", "c", "a", "b"], False),
        (["a", "a", "b"], False),
    ],
)
def test_cycles_of_actions_are_detected(recent, loops):
    """Case 11: cycles are detected, including the alternation that the seed missed."""
    assert detect_action_loop(recent) is loops
    assert detect_action_loop(recent_actions=recent, max_recent=3) is loops
    assert not detect_action_loop(
        ["a", "b", "a", "b"], max_recent=2
    )  # three equal actions without an alternation


def test_goal_system_prompt_never_changes():
    """The system prompt names the tools. Changing text is at the end of the conversation."""
    prompt = PromptManager(Goal(), attrs.evolve(TOOLS, name="ada")).system_prompt()
    assert "- ok(): Gives one." in prompt
    assert Goal().request(at("initial")).tail not in prompt


# --- results in the record ------------------------------------------------------------------


def said(sender, *parts):
    return Message(session_id="s", sender=sender, parts=parts)


MODEL, TOOL = Sender("tutor", "assistant"), Sender("tools", "tool")


def test_native_calls_count_like_protocol_calls():
    """The core reads native calls. Their results are read from the record once."""
    record = [
        said(MODEL, ToolCall("ok", {"n": 1}, "c1"), ToolCall("no", {}, "c2")),
        said(TOOL, ToolResult(call_id="c1", tool_name="ok", content="1"),
             ToolResult(call_id="c2", tool_name="no", status="error", error="broken")),
    ]  # fmt: skip
    seen = at("initial", record=record, found=0)
    progress = progress_of(seen)
    assert (progress.phase, progress.used_tools, progress.found) == ("executing", ("ok",), 1)
    assert progress.has_failed
    assert progress.actions == ('execute ok {"n":1}', "execute no {}")
    again = attrs.evolve(progress)
    apply_messages(again, seen.record, end=len(seen.record))
    assert again == progress


def test_native_call_does_not_undo_an_achieved_goal():
    """An achieved goal that waits for its final form remains achieved after another lookup."""
    record = [said(TOOL, ToolResult(call_id="c1", tool_name="ok", content="1"))]
    assert progress_of(at("finalizing", record=record, achieved=True)).phase == "finalizing"


def test_restarted_turn_without_its_output_type_ends_with_text():
    """After a restart, a turn with `run(output=)` ends with text and without data."""
    seen = at("finalizing", achieved=True, summary="v is 1")
    assert Goal().request(seen).model == "finalizer"
    *_, said = read("v is 1, in other words", seen)
    assert (said.text, said.data, said.message_type) == ("v is 1", None, "completed")


def test_with_output_copies_all_other_options():
    """`with_output` copies all other options, and does not change the first protocol."""
    first = Goal(max_iterations=3, actions=[NOTE])
    other = first.with_output({"answer": "<the answer>"})
    assert (other.max_iterations, list(other.actions)) == (3, ["note"])
    assert "answer" in other.request(at("finalizing")).tail
    assert "answer" not in first.request(at("finalizing")).tail.replace("final answer", "")


def test_a_result_without_content_is_used_but_found_nothing():
    """Case 5, weakness 9: a None result is neither a failure nor a found result."""
    record = [said(TOOL, ToolResult(call_id="c1", tool_name="ok", content="null"))]
    progress = progress_of(at("planning", record=record, found=0))
    assert (progress.used_tools, progress.found, progress.has_failed) == (("ok",), 0, False)


def test_a_new_message_is_a_new_goal():
    """The progress of an earlier goal of the session does not count for the next goal."""
    old = at("ended", achieved=True, summary="old")
    fresh = view("another", state=old.state, profile=TOOLS)
    progress = progress_of(fresh)
    assert (progress.goal, progress.phase, progress.achieved, progress.summary) == (
        "another",
        "initial",
        False,
        "",
    )


def test_progress_is_plain_data():
    """Progress in a session's state can be stored and loaded."""
    seen = at("executing")
    outcomes = read(decided("execute", GOOD["execute"]), seen)
    progress = changed(outcomes, seen)
    again = progress_in(json.loads(json.dumps(dict([stored_progress(progress)]))))
    assert json.dumps(stored_progress(again)) == json.dumps(stored_progress(progress))
    again.add_action("more")
    assert list(again.actions) == [*progress.actions, "more"]


# --- custom actions -------------------------------------------------------------------------


def note(state, params):
    """Keep a note."""
    return ("notes", [*state.get("notes", []), params["text"]])


NOTE = CustomAction("note", "keep a note", note, {"text": "<the note>"})


def test_a_custom_action_changes_the_state():
    """A custom action is offered, its params are validated, and its pair is written to the state."""
    seen, protocol = at("executing"), Goal(actions=[NOTE])
    assert '- note, params {"text": "<the note>"}: keep a note' in protocol.request(seen).tail
    outcomes = read(decided("note", {"text": "hm"}), seen, protocol)
    assert outcomes[0].action({}) == [("notes", ["hm"])]
    assert outcomes[-1] == Continue("executing", 'note: {"notes": ["hm"]}')
    with pytest.raises(ParseError, match="'text' is missing"):
        read(decided("note", {"txt": "hm"}), seen, protocol)


def after(*decisions, protocol, seen):
    """Return the view of the next call after a series of decisions."""
    for decision in decisions:
        progress = changed(read(decision, seen, protocol), seen)
        seen = attrs.evolve(seen, state=seen.state | dict([stored_progress(progress)]))
    return seen


@pytest.mark.parametrize("again", ["note", "plan", "refused"])
def test_repeated_action_is_a_cycle(again):
    """A repeated custom, built-in or rejected action is reported as a cycle. A different action is not."""
    protocol = Goal(actions=[NOTE])
    one, other = {
        "note": (decided("note", {"text": "hm"}), decided("note", {"text": "oh"})),
        "plan": (decided("plan", {"steps": ["a"]}), decided("note", {"text": "hm"})),
        "refused": (decided("execute", GOOD["execute"]), decided("note", {"text": "hm"})),
    }[again]
    seen = at("executing", profile=Profile())
    assert ("is not possible now" in read(one, seen, protocol)[-1].note) == (again == "refused")
    assert "in circles" not in protocol.request(after(one, other, protocol=protocol, seen=seen)).tail
    assert "in circles" in protocol.request(after(one, one, protocol=protocol, seen=seen)).tail


def test_a_repeated_action_without_progress_is_stopped():
    """The same change several times, or no change, ends the goal. A new change lets the goal continue."""
    for returned in (("notes", ["the same"]), None):
        protocol = Goal(actions=[CustomAction("own", "", lambda *_, found=returned: found)])
        seen = after(*[decided("own")] * MAX_STALLED, protocol=protocol, seen=at("executing"))
        (*_, said) = read(decided("own"), seen, protocol)
        assert (type(said), said.message_type) == (SendReply, "incomplete")
        assert "no progress" in changed(read(decided("own"), seen, protocol), seen).error
    protocol = Goal(actions=[NOTE])
    seen = after(
        *[decided("note", {"text": "hm"})] * (MAX_STALLED + 1), protocol=protocol, seen=at("executing")
    )
    assert progress_of(seen).stalled == MAX_STALLED


def test_unreadable_task_results_count_no_tool():
    """A result of `run_tasks` that is cut or malformed counts no tool as used."""
    for content in ('{"tasks": [{"tool": "ok", "sta', "[]", '{"tasks": 7}'):
        record = [said(TOOL, ToolResult(call_id="c1", tool_name="run_tasks", content=content))]
        progress = progress_of(at("planning", record=record, found=0))
        assert (progress.used_tools, progress.has_failed, progress.phase) == ((), False, "executing")


@pytest.mark.parametrize("returned", ["achieved", 7, [("a",)], {"a": 1}, ("_goal", {"achieved": True})])
def test_invalid_result_of_a_custom_action_changes_nothing(returned):
    """A return value that is not a pair, or has a key of the loop, changes nothing, and the loop continues."""
    protocol = Goal(actions=[CustomAction("own", "", lambda *_: returned)])
    seen = at("executing")
    outcomes = read(decided("own"), seen, protocol)
    assert outcomes[-1].note.startswith("own: Error: ")
    assert len([outcome for outcome in outcomes if isinstance(outcome, UpdateState)]) == 1
    assert not changed(outcomes, seen).achieved


def test_a_custom_action_gets_a_copy():
    """Case 2: changes of the passed state have no effect. A raised exception is reported to the model."""

    def spoil(state, params):
        state["notes"].append("spoilt")
        raise RuntimeError("no")

    seen = at("executing")
    seen.state["notes"] = ["good"]
    outcomes = read(decided("own"), seen, Goal(actions=[CustomAction("own", "", spoil)]))
    assert outcomes[-1].note == "own: Error: RuntimeError: no"
    assert seen.state["notes"] == ["good"]


@pytest.mark.parametrize("name", ["plan", "evaluate", "Plan", " "])
def test_invalid_names_of_custom_actions_are_rejected(name):
    """Built-in actions cannot be replaced. Two actions cannot have names that differ only in case."""
    with pytest.raises(ConfigurationError, match="the name must not be one of"):
        CustomAction(name, "", note)
    with pytest.raises(ConfigurationError, match="two custom actions are named 'note'"):
        Goal(actions=[NOTE, attrs.evolve(NOTE, name="Note")])


def test_a_goal_needs_an_iteration():
    """A loop without an iteration is a configuration error."""
    with pytest.raises(ConfigurationError, match="at least 1"):
        Goal(max_iterations=0)
