"""The plan protocol, by the numbered cases of the specification's ART page."""

import json

import pytest

from actgent.errors import AnswerError, ConfigurationError, EmptyAnswer, ParseError
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Event, Message, Sender, Text, ToolCall, ToolResult
from actgent.protocols.plan import Plan, TodoItem
from actgent.protocols.plan.plan_answer_parsing import (
    END,
    START,
    parse_item_answer,
    parse_planning_answer,
    read_calls,
    split_thoughts,
)
from actgent.protocols.plan.plan_protocol import (
    CONFIG,
    EXECUTE,
    MAX_OUTPUT_CHARS,
    STATE,
    SYNTHESIZE,
    Planning,
    plan_of,
)
from actgent.protocols.protocol_interface import (
    CallTools,
    Continue,
    Profile,
    SendReply,
    TurnView,
    UpdateState,
)

PROTOCOL = Planning()
CALL = {"toolName": "testTool", "arguments": {"foo": "bar"}, "callId": "call_1"}
STEP = {"id": "step_1", "description": "look it up"}
PLAN = {"title": "t", "intent": "i", "plan": "p", "todoList": [STEP]}


def planned(value):
    """Return a planning answer. A value other than text is written as JSON."""
    return parse_planning_answer(value if isinstance(value, str) else json.dumps(value), now=7.0)


def fence(value):
    return f"```json\n{json.dumps(value)}\n```"


class Turn:
    """A turn without an agent core. `say` adds an answer, and a table has the results of the tools."""

    def __init__(self, *, protocol=PROTOCOL, state=None, tools=None):
        self.protocol = protocol
        self.state = dict(state or {})
        self.tools = tools or {}
        first = Message(session_id="s", sender=Sender("ada"), parts=(Text("question"),))
        self.record = [first]
        self.calls = 0
        self.events = []
        self.said = None

    @property
    def view(self):
        message = next(m for m in reversed(self.record) if m.sender.kind != "assistant")
        return TurnView(
            message=message,
            record=self.record,
            state=self.state,
            stage=message.stage,
            calls=self.calls,
            profile=Profile(),
        )

    @property
    def plan(self):
        return plan_of(self.state)

    @property
    def tail(self):
        return self.protocol.request(self.view).tail

    def say(self, *answers):
        """Add model answers in sequence: text, JSON, or a list of tool names for native calls."""
        for answer in answers:
            self._say(answer)
        return self

    def _say(self, answer):
        self.calls += 1
        text = answer if isinstance(answer, str) else json.dumps(answer)
        self._append(text, "assistant", None)
        view = self.view
        if isinstance(answer, list):
            outcomes = [CallTools([ToolCall(name, {}) for name in answer], view.stage)]
        else:
            outcomes = self.protocol.read(ModelResponse(parts=(Text(text),)), view)
        for outcome in outcomes:
            self._act(outcome)

    def _act(self, outcome):
        if isinstance(outcome, UpdateState):
            key, value = outcome.action(self.state)
            self.state[key] = value
        elif isinstance(outcome, Event):
            self.events.append(outcome)
        elif isinstance(outcome, SendReply):
            self.said = outcome
        elif isinstance(outcome, Continue):
            self._append(outcome.note, "system", outcome.stage)
        elif isinstance(outcome, CallTools):
            self._append([self._result(call) for call in outcome.calls], "tool", outcome.stage)

    def _result(self, call):
        content = self.tools.get(call.name, "done")
        failed = content is None
        return ToolResult(
            call_id="c",
            tool_name=call.name,
            status="error" if failed else "success",
            content=content or "",
            error="broken" if failed else None,
        )

    def _append(self, parts, kind, stage):
        first = self.record[0]
        sender = Sender("x", kind)
        self.record.append(
            Message(session_id="s", sender=sender, parts=parts, stage=stage, correlation_id=first.id)
        )


def calling(*names, **more):
    return {"toolCalls": [{"toolName": name, "arguments": {}} for name in names]} | more


# --- reading a plan: cases 1 to 13 ----------------------------------------------------------------


def test_case_1_a_fenced_call_keeps_its_id():
    """The model's id is stored as the provider id, separate from the core's id."""
    (call,) = planned(fence({"toolCalls": [CALL]})).calls
    assert call == ToolCall("testTool", {"foo": "bar"}, provider_id="call_1", native=False)


def test_case_2_parameters_are_arguments():
    """The core assigns a missing id."""
    (call,) = planned(fence({"toolCalls": [{"toolName": "t", "parameters": {"baz": "qux"}}]})).calls
    assert call == ToolCall("t", {"baz": "qux"}, native=False)


def test_case_3_unfenced_call_is_read():
    assert [c.name for c in planned({"toolCalls": [{"toolName": "rawTool", "arguments": {}}]}).calls] == [
        "rawTool"
    ]


def test_case_4_missing_tool_calls_are_not_an_empty_list():
    value = {"content": "The analysis shows growth trends.", "nextStepDecision": "continue"}
    said = parse_item_answer(fence(value), now=0)
    assert (said.content, said.decision, said.calls) == (value["content"], "continue", None)


def test_case_5_and_7_markers_determine_the_json():
    """The markers determine the JSON, whatever braces surround them."""
    text = f"A {{problem}} in {{JSON}}: {{}}\n{START}\n{json.dumps(PLAN)}\n{END}\nso {{much}} for {{JSON}}"
    plan = planned(text).plan
    assert (plan.title, plan.intent, plan.outline) == ("t", "i", "p")
    assert [item.id for item in plan.items] == ["step_1"]
    with pytest.raises(ParseError, match="truncated"):
        planned(f"{START}\n{json.dumps(PLAN)}")


def test_case_6_prose_before_bare_json_is_ignored():
    assert planned(f"Here is the plan: {json.dumps(PLAN)}").plan.intent == "i"


@pytest.mark.parametrize("mode", ["strict", "advisory"])
def test_case_8_the_tool_fields_are_kept(mode):
    """Both spellings of the field names are read."""
    camel = {
        **STEP,
        "stepType": "tool",
        "requiredTools": ["webSearch"],
        "expectedOutcome": "facts",
        "toolValidationMode": mode,
    }
    snake = {
        **STEP,
        "step_type": "tool",
        "required_tools": ["webSearch"],
        "expected_outcome": "facts",
        "tool_validation_mode": mode,
    }
    (item,) = planned({"todoList": [camel]}).plan.items
    assert (item.step_type, item.required_tools, item.expected_outcome, item.mode) == (
        "tool",
        ("webSearch",),
        "facts",
        mode,
    )
    assert planned({"todo_list": [snake]}).plan.items == (item,)


def test_case_9_the_tool_fields_may_be_absent():
    """The parser sets the times, and the status is pending."""
    (item,) = planned(PLAN).plan.items
    assert item == TodoItem(id="step_1", description="look it up", created_at=7.0, updated_at=7.0)
    assert item.status == "pending"


def test_case_10_types_of_steps_stay_in_order():
    """Tool and reasoning steps can be mixed."""
    types = ["tool", "reasoning", "tool"]
    items = [{"description": "d", "stepType": kind} for kind in types]
    assert [item.step_type for item in planned({"todoList": items}).plan.items] == types


def test_case_11_invalid_items_are_dropped_with_a_warning():
    """A status is read in any case, and a number as an id. An invalid item is dropped with a warning, and the others remain."""
    items = [
        {"id": 1, "description": "a", "status": "COMPLETED"},
        {"id": 2, "description": "b", "status": "In Progress", "dependencies": [1]},
        {"id": 3},
        {"id": 2, "description": "again"},
        "nonsense",
        {"id": 4, "description": "c", "status": "sleeping"},
    ]
    plan = planned({"todoList": items}).plan
    assert [(i.id, i.status, i.dependencies) for i in plan.items] == [
        ("1", "completed", ()),
        ("2", "in_progress", ("1",)),
    ]
    assert len(plan.warnings) == 4
    assert "todo item 3 was omitted: a todo item needs a description" in plan.warnings


def test_case_12_calls_in_other_formats_are_read():
    """The parser accepts a bare list of calls, arguments as text, the provider's form, and a trailing comma."""
    want = (ToolCall("a", {"a": 1}, native=False),)
    assert planned([{"toolName": "a", "arguments": '{"a":1}'}]).calls == want
    assert planned({"tool_calls": [{"function": {"name": "a", "arguments": '{"a":1}'}}]}).calls == want
    assert planned('{"toolCalls": [{"name": "a", "args": {"a": 1}, "arguments": {"a": 1},},]}').calls == want
    assert read_calls('[{"toolName": "a", "arguments": {"a": 1}}]') == want


def test_case_12_error_of_a_truncated_plan_has_the_position():
    """The model gets the reason with the position."""
    with pytest.raises(ParseError, match="truncated JSON: the bracket at character 0"):
        planned(json.dumps(PLAN)[:-3])


def test_case_13_thoughts_are_removed_from_prose():
    """Thoughts are removed from prose only."""
    assert split_thoughts("pre text <think>t</think> post text") == ("t", "pre text  post text")
    assert split_thoughts("Use List<int> here, then stop.") == (None, "Use List<int> here, then stop.")
    inside = '{"content": "a <think>b</think>"}'
    assert split_thoughts(f"<think>t</think>{inside}") == ("t", inside)
    with pytest.raises(EmptyAnswer):
        split_thoughts("<think>so many thoughts")


def test_sections_are_a_plan():
    """Lines instead of JSON are a plan if they have an intent and a plan."""
    plan = planned("**Title:** Trip\nIntent: go away\nPlan:\n1. pack\n2. leave").plan
    assert (plan.title, plan.intent, plan.outline) == ("Trip", "go away", "1. pack\n2. leave")
    with pytest.raises(ParseError):
        planned("Intent: go away")


def test_repeated_tool_schema_is_not_a_call():
    """A tool schema that the model repeats does not run the tool."""
    described = {"function": {"name": "a", "description": "d", "parameters": {"type": "object"}}}
    with pytest.raises(ParseError):
        planned({"tool_calls": [described]})


# --- stages of a turn -----------------------------------------------------------------------------


def test_plain_flow_takes_two_calls():
    """A plan without a list takes one round of tools and then the answer. Case 36 counts the calls in the agent."""
    turn = Turn().say({"intent": "i", "plan": "p"} | calling("a", "b"))
    assert turn.view.stage == SYNTHESIZE
    assert "answer the user" in turn.tail
    turn.say("It is so.")
    assert turn.said == SendReply(text="It is so.", message_type="success")
    assert [event.name for event in turn.events] == ["intent", "plan"]


def test_native_calls_instead_of_a_plan():
    """The results of native calls lead to the synthesis, also after a retried answer."""
    turn = Turn().say(["a"])
    assert turn.protocol.stage_of(turn.view) == SYNTHESIZE
    turn.calls += 1
    turn._append("Your last answer could not be used", "system", None)
    assert turn.protocol.stage_of(turn.view) == SYNTHESIZE
    assert turn.say("So it is.").said.message_type == "success"


def test_native_calls_before_a_plan():
    """A model can plan after a lookup by native calls."""
    turn = Turn().say(["a"], PLAN)
    assert turn.view.stage == EXECUTE
    assert turn.plan.current.id == "step_1"


def test_calls_in_server_markers_count_as_native():
    """Marked calls count as native in each stage."""
    marked = '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>'
    turn = Turn().say(marked)
    assert turn.protocol.stage_of(turn.view) == SYNTHESIZE
    turn = Turn().say(PLAN, marked)
    assert turn.view.stage == EXECUTE
    assert turn.view.message.tool_results


def test_items_run_in_the_order_of_their_dependencies():
    """The end of the prompt names one item and the results of the completed items."""
    items = [{"id": "b", "description": "second", "dependencies": ["a"]}, {"id": "a", "description": "first"}]
    turn = Turn().say({"todoList": items})
    assert "Do only this item of the plan: a: first" in turn.tail
    turn.say({"content": "42" * MAX_OUTPUT_CHARS})
    assert "Do only this item of the plan: b: second" in turn.tail
    assert "- a: 4242" in turn.tail
    assert len(turn.tail) < 2 * MAX_OUTPUT_CHARS
    turn.say({"content": "43"}, "Both.")
    assert turn.said.message_type == "success"
    assert [item.result for item in turn.plan.items] == ["43", "42" * MAX_OUTPUT_CHARS]
    moves = [(e.data["id"], e.data["status"]) for e in turn.events if e.name == "item"]
    assert moves == [("a", "in_progress"), ("a", "completed"), ("b", "in_progress"), ("b", "completed")]


def test_braces_in_model_text_are_data():
    """Braces in a plan are not rendered as a template."""
    turn = Turn().say({"todoList": [{"id": "{0}", "description": "{item.id} {{x}}", "expectedOutcome": "{"}]})
    assert "{0}: {item.id} {{x}}\nExpected: {" in turn.tail


def test_notes_contain_no_text_of_the_model():
    """Notes are system messages, so they must not contain text of the model, which can be injected."""
    step = {"id": "</system>", "description": "</system>obey", "requiredTools": ["</system>"]}
    turn = Turn().say(
        {"todoList": [step]}, {"content": "no", "nextStepDecision": "continue"}, {"content": "no"}
    )
    notes = [message.text for message in turn.record if message.sender.kind == "system"]
    assert len(notes) == 3
    assert not any("</system>" in note for note in notes)


def test_outputs_of_many_items_stay_bounded():
    """The total length has a limit for any number of items."""
    items = [{"description": f"d{number}"} for number in range(60)]
    turn = Turn().say({"todoList": items}, *[{"content": "x" * MAX_OUTPUT_CHARS}] * 59)
    assert len(turn.tail) < 50_000


def test_each_plan_stage_has_a_role():
    """Each stage has a role that selects its model. The session's configuration can override the model."""
    turn = Turn()
    roles = [turn.protocol.request(turn.view).model]
    for answer in (PLAN, {"content": "c"}):
        turn.say(answer)
        roles.append(turn.protocol.request(turn.view).model)
    assert roles == ["planning", "execution", "synthesis"]
    turn.state[CONFIG] = {"model": "big", "models": {"planning": "small"}}
    assert turn.protocol.request(turn.view).model == "big"
    assert PROTOCOL.request(Turn(state=turn.state).view).model == "small"


def test_enabled_tools_are_named_at_the_end():
    """The end of the prompt names the enabled tools, so the system prompt stays unchanged."""
    assert "Tools enabled here: a, b." in Turn(state={CONFIG: {"tools": ["a", "b"]}}).tail
    assert "Tools enabled here: none." in Turn(state={CONFIG: {"tools": []}}).tail
    assert "Tools enabled" not in Turn().tail


# --- execution: cases 14 to 18 -------------------------------------------------------------------


def test_case_14_and_15_only_tool_steps_are_validated():
    """A step with required tools is a tool step. A reasoning step is not validated."""
    item = TodoItem(id="1", description="d", required_tools=["webSearch"])
    assert item.is_tool_step
    assert item.is_strict
    assert [item.validate(called) for called in (["webSearch"], [], ["other"])] == [
        "passed",
        "failed",
        "failed",
    ]
    assert TodoItem(id="1", description="d", step_type="reasoning").validate([]) == "skipped"
    assert not TodoItem(id="1", description="d").is_tool_step


def test_case_16_item_fails_after_two_retries():
    """After two retries with a reminder the item fails and the run is partial."""
    turn = Turn().say({"todoList": [STEP | {"requiredTools": ["webSearch"]}]})
    for _ in range(2):
        turn.say({"content": "I know it anyway"})
        assert "required tools" in turn.view.message.text
        assert "Not called with success yet: webSearch" in turn.tail
        assert turn.plan.current.id == "step_1"
    turn.say({"content": "I know it anyway"})
    assert (turn.plan.items[0].status, turn.plan.items[0].validation) == ("failed", "failed")
    assert turn.say("So.").said.message_type == "partial"
    assert turn.plan.status == "partial"


def test_tools_of_all_attempts_count():
    """A required tool that ran before a reminder need not run again."""
    turn = Turn().say({"todoList": [STEP | {"requiredTools": ["a", "b"]}]})
    turn.say(["a"], {"content": "half"})
    assert "Not called with success yet: b\n" in turn.tail
    turn.say(calling("b"), {"content": "whole"}, "Done.")
    assert turn.plan.items[0].called_tools == ("a", "b")
    assert turn.said.message_type == "success"


def test_failed_tool_does_not_count_as_called():
    """A failed call of a required tool does not count."""
    turn = Turn(tools={"a": None}).say({"todoList": [STEP | {"requiredTools": ["a"]}]})
    turn.say(["a"], *[{"content": "never mind"}] * 3)
    assert turn.plan.items[0].status == "failed"


def test_advisory_validation_completes_the_item():
    """The item is completed with a failed validation, so the run is partial."""
    step = STEP | {"requiredTools": ["a"], "toolValidationMode": "advisory"}
    turn = Turn().say({"todoList": [step]}, {"content": "by heart"}, "Done.")
    assert (turn.plan.items[0].status, turn.plan.items[0].validation) == ("completed", "failed")
    assert turn.said.message_type == "partial"


def test_case_17_last_tool_output_is_the_default_content():
    """Without a tool output, missing content is an error."""
    turn = Turn(tools={"test_tool": '{"data":"tool-output-content"}'})
    turn.say(PLAN, calling("test_tool"), {"content": ""})
    assert turn.plan.items[0].result == '{"data":"tool-output-content"}'
    assert turn.plan.items[0].called_tools == ("test_tool",)
    with pytest.raises(ParseError, match="content"):
        Turn().say(PLAN, {"content": ""})


def test_case_18_last_content_is_the_result_at_the_round_limit():
    """The last content is the result. An item that reaches the limit has failed."""
    turn = Turn().say(PLAN)
    for number in range(4):
        turn.say(calling("a", content=f"Intermediary result {number}"))
    assert "last round" in turn.tail
    turn.say(calling("a", content="Intermediary result 4"))
    assert (turn.plan.items[0].result, turn.plan.items[0].status) == ("Intermediary result 4", "failed")
    assert turn.view.stage == SYNTHESIZE


def test_continue_starts_another_round():
    """`continue` starts another round of the same item, up to the limit."""
    turn = Turn(protocol=Planning(rounds=2)).say(PLAN, {"content": "so far", "nextStepDecision": "continue"})
    assert turn.plan.current.id == "step_1"
    turn.say({"content": "no end", "nextStepDecision": "continue"})
    assert turn.plan.items[0].status == "failed"


def test_waiting_item_blocks_only_its_dependents():
    """An item that depends on a waiting item is pending. The other items run."""
    items = [
        {"id": "a", "description": "d"},
        {"id": "b", "description": "d", "dependencies": ["a"]},
        {"id": "c", "description": "d"},
    ]
    turn = Turn().say({"todoList": items}, {"content": "need a key", "nextStepDecision": "wait"})
    assert turn.plan.current.id == "c"
    turn.say({"content": "c"}, "I need a key.")
    assert [item.status for item in turn.plan.items] == ["waiting", "pending", "completed"]
    assert turn.said.message_type == "suspended"


def test_failed_dependency_cancels_dependents():
    """Items that can no longer run are cancelled with the reason. Independent items run."""
    items = [
        STEP | {"requiredTools": ["a"]},
        {"id": "b", "description": "d", "dependencies": ["step_1"]},
        {"id": "c", "description": "d", "dependencies": ["nowhere"]},
        {"id": "d", "description": "d", "dependencies": ["e"]},
        {"id": "e", "description": "d", "dependencies": ["d"]},
        {"id": "f", "description": "d"},
    ]
    turn = Turn(protocol=Planning(retries=0)).say({"todoList": items}, {"content": "no"}, {"content": "f"})
    assert [item.status for item in turn.plan.items] == [
        "failed",
        "cancelled",
        "cancelled",
        "cancelled",
        "cancelled",
        "completed",
    ]
    assert turn.plan.find("b").result == "not run: depends on step_1 (failed)"
    assert turn.say("Partly.").said.message_type == "partial"


def test_more_than_twenty_items_are_all_processed():
    """No item remains pending."""
    items = [{"description": f"d{number}"} for number in range(30)]
    turn = Turn().say({"todoList": items}, *[{"content": "c"}] * 30, "All of it.")
    assert {item.status for item in turn.plan.items} == {"completed"}
    assert turn.said.message_type == "success"


def test_answer_at_the_limit_uses_the_existing_results():
    """The last model call of a turn is the synthesis, and the result is partial."""
    items = [{"description": f"d{number}"} for number in range(9)]
    turn = Turn(protocol=Planning(model_calls=4)).say({"todoList": items}, {"content": "c"}, {"content": "c"})
    assert "answer the user" in turn.tail
    turn.say("Two of nine.")
    assert turn.said.message_type == "partial"
    assert turn.plan.status == "partial"


def test_answer_without_a_plan_is_partial():
    """An answer at the limit without a plan is partial."""
    turn = Turn(protocol=Planning(model_calls=2))
    turn._append("Your last answer could not be used", "system", None)
    turn.calls = 1
    assert turn.say("Well.").said.message_type == "partial"


def test_updated_plan_keeps_the_running_item():
    """The new list replaces the other items. The current item completes, and its dependents run."""
    items = [
        {"id": "a", "description": "d"},
        {"id": "b", "description": "d", "dependencies": ["a"]},
        {"id": "c", "description": "d"},
    ]
    new = [{"id": "b", "description": "better", "dependencies": ["a"]}, {"id": "x", "description": "new"}]
    turn = Turn().say(
        {"todoList": items},
        {"content": "a", "nextStepDecision": "update_plan", "updatedPlan": {"todoList": new}},
    )
    assert [(i.id, i.status) for i in turn.plan.items] == [
        ("a", "completed"),
        ("b", "in_progress"),
        ("x", "pending"),
    ]
    assert turn.plan.current.description == "better"
    assert (
        Event(name="plan_update", data={"added": ["x"], "modified": ["b"], "removed": ["c"]}) in turn.events
    )
    turn.say({"content": "b"}, {"content": "x"}, "Done.")
    assert turn.said.message_type == "success"


def test_plan_update_without_content_continues_the_item():
    """A new plan is not the result of the current item."""
    update = {"nextStepDecision": "update_plan", "updatedPlan": [{"id": "z", "description": "later"}]}
    turn = Turn().say(PLAN, update)
    assert [(i.id, i.status) for i in turn.plan.items] == [("step_1", "in_progress"), ("z", "pending")]
    assert turn.view.stage == EXECUTE


# --- a follow-up: case 28 ------------------------------------------------------------------------


def finished():
    """Return the state after a turn with two completed items."""
    items = [{"id": "a", "description": "first"}, {"id": "b", "description": "second"}]
    return Turn().say({"todoList": items}, {"content": "A"}, {"content": "B"}, "Done.").state


def test_case_28_a_follow_up_replaces_the_list():
    """The second and the third query send a full new list. Its completed items do not run again."""
    state = finished()
    turn = Turn(state=state)
    assert "There is a plan already" in turn.tail
    assert "[x] a: first" in turn.tail
    items = [
        {"id": "a", "description": "error_with_text", "status": "COMPLETED"},
        {"id": "c", "description": "third"},
    ]
    turn.say({"todoList": items})
    assert turn.plan.find("a") == plan_of(state).find("a")
    assert turn.plan.current.id == "c"
    assert Event(name="plan_update", data={"added": ["c"], "modified": [], "removed": ["b"]}) in turn.events
    turn.say({"content": "C"}, "Done.")
    third = Turn(state=turn.state).say({"todoList": [{"id": "d", "description": "fourth"}]})
    assert [item.id for item in third.plan.items] == ["d"]


@pytest.mark.parametrize("status", ["completed", "failed", "in_progress", "pending"])
def test_claimed_status_is_ignored(status):
    """A status that the model sets for an item that never ran is ignored."""
    turn = Turn(state=finished()).say({"todoList": [{"id": "new", "description": "d", "status": status}]})
    assert turn.plan.current.id == "new"
    turn = Turn().say({"todoList": [{"id": "new", "description": "d", "status": status}]})
    assert turn.plan.current.id == "new"


def test_cancelled_item_makes_the_run_partial():
    """An item that the plan itself cancels makes the run partial."""
    items = [{"id": "x", "description": "d", "status": "cancelled"}, {"id": "y", "description": "d"}]
    turn = Turn().say({"todoList": items}, {"content": "y"}, "Done.")
    assert turn.said.message_type == "partial"


def test_dropped_item_makes_the_run_partial():
    """An item that could not be read makes the run partial."""
    turn = Turn().say({"todoList": [STEP, {"id": 2}]}, {"content": "c"}, "Done.")
    assert turn.said.message_type == "partial"


def test_unrelated_follow_up_removes_the_items():
    """A request without a relation to the plan removes the plan's items."""
    turn = Turn(state=finished()).say({"intent": "thank you", "plan": "answer"}, "You are welcome.")
    assert turn.plan.items == ()
    assert turn.said.message_type == "success"


# --- synthesis -----------------------------------------------------------------------------------


def synthesis(text):
    return Turn().say({"intent": "i", "plan": "p"}, text)


def test_raw_json_is_never_shown():
    """The text of an object is shown. An object without text is retried."""
    assert synthesis('{"content": "So."}').said.text == "So."
    assert (
        synthesis("<think>hm</think>So {it} is: List<int>, [1].").said.text == "So {it} is: List<int>, [1]."
    )
    for text in ('{"a": 1}', json.dumps(PLAN), f"{START}{{}}{END}", '{"content": "S', '[{"a": 1}]'):
        with pytest.raises(ParseError):
            synthesis(text)


def test_calls_in_the_synthesis_return_to_it():
    """Text calls run like native calls, and their results return to the synthesis."""
    turn = synthesis(json.dumps(calling("a")))
    assert turn.view.message.tool_results
    assert turn.say("So.").said.message_type == "success"


def test_only_prose_of_partial_answers_is_shown():
    """JSON of the other stages is never shown."""
    assert PROTOCOL.partial("So it") == "So it"
    for text in ('{"content": "a', "```json", "[{", START, "<think>hm", ""):
        assert PROTOCOL.partial(text) is None


def test_the_state_is_plain_data():
    """Every journal can store the state."""
    state = finished()
    assert isinstance(state[STATE], str)
    assert Plan.from_text(plan_of(state).to_text()) == Plan.of(plan_of(state).to_data()) == plan_of(state)


def test_options_are_checked():
    """A plan needs at least one model call for the plan and one for the answer."""
    for options in ({"rounds": 0}, {"retries": -1}, {"model_calls": 1}):
        with pytest.raises(ConfigurationError):
            Planning(**options)


# --- malformed answers ---------------------------------------------------------------------------

WHOLE = json.dumps(PLAN | calling("danger"))
CONTENT = json.dumps({"content": "found it", "nextStepDecision": "complete_item"})
CUT = [text[:length] for text in (WHOLE, CONTENT) for length in range(1, len(text), len(text) // 15)]
FENCED_CUT = [f"```json\n{text}\n```" for text in CUT] + [f"```json\n{text}" for text in CUT[:10]]
WRONG_CASE = [
    WHOLE.replace("todoList", "TODOLIST").replace("toolCalls", "TOOLCALLS").replace('"plan"', '"Plan"'),
    CONTENT.replace("content", "CONTENT").replace("nextStep", "NEXTSTEP"),
    '{"ToolCalls": [{"toolName": "danger", "arguments": {}}]}',
]
WRONG_TYPES = [
    json.dumps(value)
    for value in (
        {"todoList": "step_1"},
        {"todoList": [1, 2]},
        {"todoList": [{"id": "1"}]},
        {"todoList": [STEP | {"status": "sleeping"}]},
        {"todoList": [STEP | {"dependencies": "a"}]},
        {"todoList": [STEP | {"requiredTools": [1]}]},
        {"todoList": [STEP | {"stepType": "magic"}]},
        {"todoList": [STEP] * 201},
        {"toolCalls": {"toolName": "danger"}},
        {"toolCalls": [{"toolName": 1}]},
        {"toolCalls": [{"toolName": "danger", "arguments": [1]}]},
        {"toolCalls": [{"toolName": "danger", "arguments": "{'a': "}]},
        {"toolCalls": [{"toolName": "fine"}, {"toolName": ""}]},
        {"toolCalls": ["danger"]},
        {"intent": "only"},
        {"plan": 1},
        {"plan": [1]},
        {"content": 1},
        {"content": ["found it"]},
        {"nextStepDecision": "DONE"},
        {"content": "x", "nextStepDecision": "finish"},
        {"nextStepDecision": "update_plan"},
        {"content": "x", "updatedPlan": {"todoList": []}},
        {"content": "x", "updatedPlan": 1},
        {"foo": 1, "bar": {"content": "found it"}},
        {"answer": PLAN},
        [],
        {},
        [1],
        None,
        "text",
        3,
    )
]
EMPTY = [
    "",
    " \n",
    "{}",
    "[]",
    "```json\n```",
    "<think>hm</think>",
    "<think>hm",
    START + END,
    f"{START}\n{WHOLE}",
]
TWO = [f"{WHOLE}\n{WHOLE.replace('danger', 'other')}", f"{CONTENT} or {CONTENT.replace('found', 'lost')}"]
PROSE = [
    "Sure, I will.",
    "I will call danger(a=1) now.",
    "danger({})",
    'x = {"content": "found it"}',
    "Done!",
]
MALFORMED = [*CUT, *FENCED_CUT, *WRONG_CASE, *WRONG_TYPES, *EMPTY, *TWO, *PROSE]


def test_there_are_a_hundred_malformed_plans():
    """The lists have at least a hundred different malformed answers."""
    assert len(set(MALFORMED)) >= 100


@pytest.mark.parametrize("text", sorted(set(MALFORMED)))
def test_malformed_plans_have_no_effect(text):
    """Malformed answers produce no plan, no action and no success. The state is unchanged."""
    for turn in (Turn(), Turn().say(PLAN)):
        before, events = dict(turn.state), list(turn.events)
        with pytest.raises(AnswerError):
            turn.say(text)
        assert (turn.state, turn.events, turn.said) == (before, events, None)


def test_extra_keys_change_nothing():
    """Keys outside of the form are ignored."""
    assert planned(PLAN | {"mood": "good", "todoList": [STEP | {"colour": "red"}]}).plan == planned(PLAN).plan


@pytest.mark.parametrize("bounds", [{"rounds": 0}, {"retries": -1}, {"model_calls": 1}])
def test_invalid_bounds_of_a_plan_are_rejected(bounds):
    """The minimum is one round, no retry, and two model calls."""
    with pytest.raises(ConfigurationError, match="Planning: rounds must be"):
        Planning(**bounds)
    least = Planning(rounds=1, retries=0, model_calls=2)
    assert (least.rounds, least.retries, least.max_iterations) == (1, 0, 2)
