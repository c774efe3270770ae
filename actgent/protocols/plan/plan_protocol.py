"""The `plan` protocol: plan, execute item by item, synthesize.

    planning  ── todo list ──►  execution, an item after the other  ──►  synthesis  ──►  the answer
        └────── tool calls, or nothing to do but to answer ──────────────────┘

A turn begins with planning. In a session with a plan, a follow-up message refines the plan. The items run in the order
of their dependencies, and later items see the results of earlier ones. The message type of the answer is the status of
the plan: `success`, `partial`, `error` if all tool calls failed, or `suspended` if an item waits for an external event.

The core runs native tool calls without this protocol, so they are read from the messages. Native calls in a planning
answer count as a plan without a list: their results lead to the synthesis.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from actgent.errors import ConfigurationError, ParseError
from actgent.errors.text_escaping import counted
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Event, Message, ToolCall
from actgent.protocols.answer_content_parsing import parse_encoded_calls, text_in
from actgent.protocols.partial_answers import PartialAnswer, follow_prose
from actgent.protocols.prompt_rendering import WHO
from actgent.protocols.protocol_interface import (
    CallTools,
    Continue,
    Outcome,
    Protocol,
    Request,
    SendReply,
    TurnView,
    UpdateState,
    WithOutput,
)
from actgent.protocols.tool_call_summary import status_of_tools
from actgent.structured_output.extract_json import extract_only, strip_code_fence
from actgent.support.attrs_class_repr import FieldRepr

from .plan_answer_parsing import (
    END,
    START,
    ItemAnswer,
    parse_item_answer,
    parse_planning_answer,
    read_calls,
    split_thoughts,
)
from .todo_list import (
    Plan,
    TodoDiff,
    TodoItem,
    cancel_blocked,
    diff_todo,
    next_item,
    refine,
    run_status,
    shorten_to_line,
    todo_text,
    update,
)

STATE, CONFIG = "plan", "plan.config"
"""Keys of the plan and of the plan's configuration in the session's state."""
EXECUTE, SYNTHESIZE = "execute", "synthesize"
ROLES: Mapping[str | None, str] = {None: "planning", EXECUTE: "execution", SYNTHESIZE: "synthesis"}
"""Stage -> role of the model that is called in the stage."""
MAX_OUTPUT_CHARS = 4_000
"""Maximum length of a completed item's result in the prompts of later items."""
MAX_TOTAL_OUTPUT_CHARS = 40_000
"""Maximum total length of the results of all completed items in a prompt."""

_PLANNING = f"""\
Plan how to answer. Do not answer yet. Give exactly one JSON object, between the two marker lines:
{START}
{{
  "title": "<a few words>",
  "intent": "<what the user wants>",
  "plan": "<how you go about it>",
  "todoList": [
    {{"id": "step_1", "description": "...", "stepType": "tool" or "reasoning", "dependencies": ["<ids>"],
      "requiredTools": ["<tools that it cannot do without>"], "toolValidationMode": "strict" or "advisory",
      "expectedOutcome": "..."}}
  ],
  "toolCalls": [{{"toolName": "<tool>", "arguments": {{...}}}}]
}}
{END}
For one round of tools leave todoList out and give toolCalls; for a request that needs neither give only intent and plan."""

_REFINING = """\
There is a plan already:
{plan}
Refine it: give the full new todoList. Keep the ids of items that stay, with their "status"; completed ones are not
done again. Leave todoList out only if the request has nothing to do with it."""

_EXECUTING = """\
Give exactly one JSON object and nothing else:
{"thoughts": "...", "content": "<what the item came to>", "toolCalls": [{"toolName": "<tool>", "arguments": {...}}],
 "nextStepDecision": "continue", "wait", "complete_item" or "update_plan", "updatedPlan": {"todoList": [...]}}
Without toolCalls the item ends with its content. "continue": you go on with it; "wait": it needs something from outside;
"update_plan": the rest of the plan changes to updatedPlan."""

_LAST_ROUND = "This is the last round of this item: call no more tools, and give its content."

_SYNTHESIZING = """\
Now answer the user, in plain text, from all that was found. Say openly what failed or was not done, and claim
nothing that did not happen."""

_OR_PLAN = 'If it takes more than that, give a plan as JSON instead: {"intent": "...", "plan": "...", "todoList": [...]}.'

_REMINDER = "The item cannot be completed without its required tools, and not all were called with success."
"""Text at the end of the prompt that introduces texts of the model. They are never sent as notes, which have the
authority of system messages.
"""

_NO_CALLS = CallTools(())


class Planning(Protocol):
    """Protocol in three stages: plan, execute, synthesize. Each stage uses the model of its role if the agent has one.

    Args:
        rounds: Maximum number of model answers for one item.
        retries: Maximum number of retries of an item that did not call a required tool.
        model_calls: Maximum number of model calls in a turn; the last one is reserved for the answer.
    """

    name: ClassVar[str] = "plan"
    lookback = 0
    limit_argument = "Planning(model_calls=...)"
    template: ClassVar[str] = WHO
    stages: ClassVar[Sequence[str]] = tuple(ROLES.values())
    final_stage = ROLES[SYNTHESIZE]

    def __init__(self, *, rounds: int = 5, retries: int = 2, model_calls: int = 100) -> None:
        if rounds < 1 or retries < 0 or model_calls < 2:  # noqa: PLR2004 - a plan and an answer
            raise ConfigurationError(
                "Planning: rounds must be at least 1, retries at least 0, and model_calls at least 2"
            )
        self.rounds = rounds
        self.retries = retries
        self.max_iterations: int = model_calls

    # --- requests ------------------------------------------------------------

    def request(self, view: TurnView) -> Request:
        stage = self.stage_of(view)
        return Request(tail=self._tail(stage, view), model=_role(stage, view.state), is_plan=stage is None)

    def stage_name(self, view: TurnView) -> str:
        return ROLES[self.stage_of(view)]

    def stage_of(self, view: TurnView) -> str | None:
        """Return the stage of the current model call: `execute`, `synthesize`, or None for planning."""
        if self._is_last_call(view) or (view.stage is None and _has_results(view)):
            return SYNTHESIZE
        return view.stage

    def _is_last_call(self, view: TurnView) -> bool:
        return _calls_before(view) >= self.max_iterations - 1

    def _tail(self, stage: str | None, view: TurnView) -> str:
        plan = plan_of(view.state)
        if stage == EXECUTE and plan is not None and (item := plan.current):
            return self._execution_tail(plan, item, view)
        if stage == SYNTHESIZE:
            rest = _OR_PLAN if view.stage is None else todo_text(plan or Plan())
            return f"{_SYNTHESIZING}\n\n{rest}".rstrip()
        return "\n\n".join(filter(None, (_PLANNING, _refinement(plan), _enabled_tools_text(view.state))))

    def _execution_tail(self, plan: Plan, item: TodoItem, view: TurnView) -> str:
        lines = [f"Do only this item of the plan: {item.id}: {item.description}"]
        if item.expected_outcome:
            lines.append(f"Expected: {item.expected_outcome}")
        if item.required_tools:
            lines.append(f"Required tools: {', '.join(item.required_tools)}")
        if item.attempts:
            lines.append(f"Not called with success yet: {', '.join(_uncalled_tools(item))}")
        if outputs := _outputs(plan):
            lines.append(outputs)
        ends = _LAST_ROUND if _rounds(view, item) >= self.rounds else ""
        return "\n".join(filter(None, (*lines, _EXECUTING, _enabled_tools_text(view.state), ends)))

    # --- answers -------------------------------------------------------------------

    def read(self, answer: ModelResponse, view: TurnView) -> list[Outcome]:
        text = answer.text
        stage = self.stage_of(view)
        if stage == SYNTHESIZE:
            return self._synthesize(text, view)
        plan = plan_of(view.state)
        if stage == EXECUTE and plan is not None and (item := plan.current):
            return self._execute(text, view, plan, item)
        return self._plan(text, view, plan or Plan())

    def partial(self, text: str) -> str | None:
        # Planning and execution answers are JSON; prose is the synthesis.
        return text if text.lstrip()[:1] not in ("", "{", "[", "`", "-", "<") else None

    def partial_answer(self) -> PartialAnswer:
        return PartialAnswer(self.partial, follow_prose)

    def script(self, text: str, call: ToolCall | None = None) -> Sequence[str]:
        return (json.dumps({"intent": "answer", "plan": "answer"}), text)

    def shortfall(self, message_type: str | None) -> str | None:
        return None if message_type == "success" else message_type or "partial"

    def with_output(self, output: Any) -> Protocol:
        return PlanningOutput(self, output)

    def _plan(self, text: str, view: TurnView, old: Plan) -> list[Outcome]:
        if encoded := parse_encoded_calls(text):
            return [CallTools(encoded.calls, view.stage)]
        answer = parse_planning_answer(text, now=view.message.created_at)
        plan = refine(old, answer.plan)
        events = [
            *_events(thoughts=answer.thoughts, intent=plan.intent),
            Event(name="plan", data=plan.to_data()),
            *_differences(old, plan),
        ]
        return [*events, *self._start_next(plan, plan, view, calls=answer.calls)]

    def _execute(self, text: str, view: TurnView, plan: Plan, item: TodoItem) -> list[Outcome]:
        encoded = parse_encoded_calls(text)
        now = view.message.created_at
        answer = ItemAnswer(calls=tuple(encoded.calls)) if encoded else parse_item_answer(text, now=now)
        work = _work(view, item)
        events: list[Outcome] = [*_events(thoughts=answer.thoughts)]
        if answer.update is not None:
            before, plan = plan, update(plan, answer.update)
            events += [_change(plan), *_differences(before, plan)]
        return [*events, *self._step(answer, view, plan, work)]

    def _step(self, answer: ItemAnswer, view: TurnView, plan: Plan, work: "ItemWork") -> list[Outcome]:
        """Convert an answer about the current item to outcomes: tool calls, another round, or the end of the item.

        An item that needs too many rounds fails.
        """
        item, is_last = work.item, work.rounds >= self.rounds
        if is_last and (answer.calls or answer.decision == "continue"):
            result = answer.content or f"stopped after {counted(self.rounds, 'round')}"
            return self._end(item, plan, view, status="failed", result=result)
        if answer.calls:
            return [CallTools(answer.calls, EXECUTE)]
        if answer.decision == "wait":
            return self._end(item, plan, view, status="waiting", result=answer.content)
        if answer.decision == "continue" or (answer.update is not None and not answer.content):
            return [Continue(EXECUTE, "Go on with this item.")]
        if not (found := answer.content or work.output):
            raise ParseError('the answer about the running plan item must have "content" or "toolCalls"')
        return self._complete(item, found, plan, view)

    def _complete(self, item: TodoItem, result: str, plan: Plan, view: TurnView) -> list[Outcome]:
        """Complete an item with a result, and return the outcomes.

        If a required tool was not called, start the item again, or fail it after the maximum number of retries. An item that
        is not strict is completed without its required tools.
        """
        validation = item.validate(item.called_tools)
        is_open = validation == "failed" and item.is_strict
        if not is_open or item.attempts >= self.retries:
            status = "failed" if is_open else "completed"
            return self._end(item, plan, view, status=status, result=result, validation=validation)
        again = attrs.evolve(item, attempts=item.attempts + 1, begun_after=view.message.id)
        return [_change(plan.with_item(again)), Continue(EXECUTE, _REMINDER)]

    def _end(self, item: TodoItem, plan: Plan, view: TurnView, **changes: Any) -> list[Outcome]:
        ended = attrs.evolve(item, updated_at=view.message.created_at, **changes)
        return self._start_next(plan, plan.with_item(ended), view)

    def _start_next(
        self, before: Plan, plan: Plan, view: TurnView, *, calls: Sequence[ToolCall] = ()
    ) -> list[Outcome]:
        """Start the next item of a plan, or the synthesis if no item can run. Return the outcomes.

        Args:
            before: Plan before the changes, for the events.
            plan: The changed plan.
            view: View of the turn.
            calls: Tool calls to run first.
        """
        now = view.message.created_at
        plan = cancel_blocked(plan, now=now)
        item = next_item(plan)
        if item is not None:
            item = attrs.evolve(item, status="in_progress", begun_after=view.message.id, updated_at=now)
            plan = plan.with_item(item)
        stage = SYNTHESIZE if item is None else EXECUTE
        note = "" if item is None else "Now the next item."
        onward = CallTools(calls, stage) if calls else Continue(stage, note)
        return [_change(plan), *_status_events(before, plan), onward]

    def _synthesize(self, text: str, view: TurnView) -> list[Outcome]:
        if view.stage is None and (START in text or '"todoList"' in text) and not self._is_last_call(view):
            return self._plan(text, view, plan_of(view.state) or Plan())
        if calls := read_calls(text) or (parse_encoded_calls(text) or _NO_CALLS).calls:
            return [CallTools(calls, view.stage)]
        thoughts, rest = split_thoughts(text)
        return [*_events(thoughts=thoughts), *self.conclude(SendReply(text=_answer_text(rest)), view)]

    def conclude(self, reply: SendReply, view: TurnView) -> list[Outcome]:
        """Return the outcomes that end the turn: the reply, with the final status of the plan as its message type."""
        plan = plan_of(view.state)
        turn = [*_since(view, None)][::-1]
        if plan is None or view.stage is None:  # native calls replaced a plan
            by_tools = status_of_tools(turn) if _has_results(view) else "partial"
            return [attrs.evolve(reply, message_type=by_tools)]
        status = run_status(plan, status_of_tools(turn))
        return [_change(attrs.evolve(plan, status=status)), attrs.evolve(reply, message_type=status)]


class PlanningOutput(WithOutput):
    """`output=` for a plan: only the synthesis must fit the schema."""

    inner: Planning

    def request(self, view: TurnView) -> Request:
        if self.inner.stage_of(view) != SYNTHESIZE:
            return self.inner.request(view)
        return super().request(view)

    def read(self, answer: ModelResponse, view: TurnView) -> Sequence[Outcome]:
        if self.inner.stage_of(view) != SYNTHESIZE:
            return self.inner.read(answer, view)
        outcomes = super().read(answer, view)
        if len(outcomes) == 1 and isinstance(reply := outcomes[0], SendReply) and reply.message_type is None:
            return self.inner.conclude(reply, view)
        return outcomes


# --- the state ----------------------------------------------------------------------------------


def plan_of(state: Mapping[str, Any]) -> Plan | None:
    """Return the plan that the `plan` protocol stores in a session's state; None before the first plan."""
    text = state.get(STATE)
    return None if text is None else Plan.from_text(text)


def _change(plan: Plan) -> UpdateState:
    text = plan.to_text()
    return UpdateState(lambda _: (STATE, text))


def _role(stage: str | None, state: Mapping[str, Any]) -> str:
    """Return the model role for a stage: a key of the agent's `models=`.

    The session's configuration decides: its `models` by stage, then its `model`. Without both, each stage has
    a default role.
    """
    config = state.get(CONFIG, {})
    role: str = config.get("models", {}).get(ROLES[stage]) or config.get("model") or ROLES[stage]
    return role


def _enabled_tools_text(state: Mapping[str, Any]) -> str:
    tools = state.get(CONFIG, {}).get("tools")
    return "" if tools is None else f"Tools enabled here: {', '.join(tools) or 'none'}."


# --- work of the turn -----------------------------------------------------------------


@attrs.frozen(repr=False)
class ItemWork(FieldRepr):
    """The work so far on one plan item: answers and tool calls."""

    item: TodoItem
    """The plan item, with the names of the tools called so far."""
    rounds: int
    """Number of model answers since the work on the plan item began, including the current answer."""
    output: str | None
    """Result of the last successful tool call; None if there was none."""


def _work(view: TurnView, item: TodoItem) -> ItemWork:
    messages = list(_since(view, item.begun_after))
    results = [r for m in reversed(messages) if m.sender.kind == "tool" for r in m.tool_results]
    good = [result for result in results if result.status == "success"]
    if good:
        called = dict.fromkeys((*item.called_tools, *(result.tool_name for result in good)))
        item = attrs.evolve(item, called_tools=called)
    rounds = sum(message.stage == EXECUTE for message in messages)
    return ItemWork(item, rounds, good[-1].text if good else None)


def _rounds(view: TurnView, item: TodoItem) -> int:
    """Return the number of model answers for a plan item, including the answer that is requested or read now."""
    return sum(message.stage == EXECUTE for message in _since(view, item.begun_after))


def _calls_before(view: TurnView) -> int:
    """Return the number of model calls of the turn before the current call.

    It is the same when the request is built and when the answer is read.
    """
    is_answered = view.record[-1].causation_id == view.message.id
    return view.calls - is_answered


def _has_results(view: TurnView) -> bool:
    """Return True if a tool of this turn has returned a result before the current model call."""
    return _calls_before(view) > 0 and any(message.tool_results for message in _since(view, None))


def _since(view: TurnView, message_id: str | None) -> Iterator[Message]:
    """Yield the messages of the turn after the message with the id `message_id`, newest first. None yields all."""
    ends = {message_id, view.message.correlation_id or view.message.id}
    for message in reversed(view.record):
        if message.id in ends:
            return
        yield message


# --- texts and events --------------------------------------------------------------------


def _refinement(plan: Plan | None) -> str:
    return _REFINING.format(plan=todo_text(plan)) if plan is not None and plan.items else ""


def _outputs(plan: Plan) -> str:
    outputs = plan.outputs
    limit = min(MAX_OUTPUT_CHARS, MAX_TOTAL_OUTPUT_CHARS // max(len(outputs), 1))
    lines = [f"- {item_id}: {shorten_to_line(output, limit)}" for item_id, output in outputs.items()]
    return "\n".join(("What the finished items came to:", *lines)) if lines else ""


def _uncalled_tools(item: TodoItem) -> list[str]:
    return [name for name in item.required_tools if name not in item.called_tools]


def _events(**texts: str | None) -> list[Event]:
    return [Event(name=name, data=data) for name, data in texts.items() if data]


def _differences(old: Plan, new: Plan) -> list[Event]:
    diff = diff_todo(old.items, new.items) if old.items else TodoDiff()  # a first plan has no differences
    return [Event(name="plan_update", data=diff.to_data())] if diff.changes else []


def _status_events(before: Plan, after: Plan) -> list[Event]:
    """Make an event for each item whose status differs between two plans. Events of started items come last."""
    former = {item.id: item.status for item in before.items}
    moved = [item for item in after.items if former.get(item.id) != item.status]
    moved.sort(key=lambda item: item.status == "in_progress")
    return [
        Event(name="item", data={"id": item.id, "status": item.status, "result": item.result})
        for item in moved
    ]


def _answer_text(text: str) -> str:
    """Return the text of a final answer, also if the model wrapped it in a JSON object.

    Raises:
        ParseError: The answer is JSON without a text, which is never shown to the user.
    """
    dense = "".join(strip_code_fence(text).split())
    if not dense.startswith(("{", "[{")) and START not in text:
        return text.strip()
    return _text_in_object(extract_only(text.replace(START, "").replace(END, ""), _synthesis_reason)) or ""


def _synthesis_reason(value: Any) -> str | None:
    return None if _text_in_object(value) else "answer in plain text for the user, not with JSON"


def _text_in_object(value: Any) -> str | None:
    text = text_in(value) if isinstance(value, dict) else None
    return text if text and text.strip() else None
