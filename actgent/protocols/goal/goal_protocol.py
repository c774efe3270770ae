"""The `goal` protocol: decide, act and evaluate in a loop, until an evaluation finds the goal achieved.

Each user message is a goal. Each model call is one decision, which is executed immediately: a plan, tool calls, a
summary, an evaluation, or a custom action. `transitions` defines the actions that are offered next. If only one is
offered, the model of its role is asked for it: `planner`, `executor`, `summarizer`, `evaluator`, or `finalizer` for an
answer of the `output=` type. An action that was not offered is executed too, if it is possible.

The reply's `message_type` is the final status, one of `progress.Status`. The last permitted model call is reserved for
an evaluation. Only an evaluation sets `achieved`.
"""

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from actgent.errors import ConfigurationError, ParseError
from actgent.errors.text_escaping import counted
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Message, ToolCall
from actgent.protocols.answer_content_parsing import answer_text, parse_encoded_calls
from actgent.protocols.conversation_rendering import tool_documentation
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
from actgent.support.user_code_calls import convert_user_error
from actgent.tools.outputs.oversized_state_values import copy_state
from actgent.tools.outputs.result_text import canonical_json, describe, to_text, truncate
from actgent.tools.state_tools import parse_changes
from actgent.tools.tool_registry import HELPER_TOOLS

from .goal_decision_parsing import ACTIONS, FORMS, CustomAction, Decision, DecisionReader
from .goal_progress import (
    MAX_STALLED,
    WHOLE,
    Phase,
    Progress,
    Status,
    detect_action_loop,
    goal_view,
    progress_of,
    results_of,
    stored_progress,
)
from .task_plan import MAX_PLANS, RUN_TASKS, TASKS_FORM, failure_lines, tasks_in, tasks_to_arguments

MAX_SHOWN_CHARS = 2_000
"""Maximum length of the repeated goal, and of each result in a final answer without a summary."""


def tool_changes(view: TurnView) -> list[str]:
    """Return lines that list the current tools, if these tools differ from those in the system prompt; empty otherwise."""
    known, now = view.profile.tools, view.tools
    if known is now or known == now:
        return []
    return ["The tools have changed since.", tool_documentation(now) or "There are none any more."]


def feedback(progress: Progress) -> list[str]:
    """Return lines for the model about the last evaluation; none if the goal is achieved or was not evaluated."""
    evaluation = progress.evaluation
    if evaluation is None or progress.achieved:
        return []
    lines = [f"The last evaluation: not achieved. {evaluation.get('feedback') or ''}".rstrip()]
    if missing := evaluation.get("missing_items"):
        lines.append(f"Missing: {'; '.join(missing)}.")
    if suggestions := evaluation.get("suggestions"):
        lines.append(f"Suggestions: {'; '.join(suggestions)}.")
    return lines


def closing_text(progress: Progress, record: Sequence[Message]) -> str:
    """Return the final answer for the user: the answer of the evaluation, or the summary, or a list of the results.

    If the goal was not achieved, the text begins with the reason and ends with the missing items.
    """
    evaluation = progress.evaluation or {}
    found: str = progress.summary or _list_results(progress, record) or "Nothing was found."
    if progress.achieved:
        return (evaluation.get("answer") or "").strip() or found
    missing = evaluation.get("missing_items")
    lines = [f"The goal was not achieved: {progress.error}.", found]
    return "\n\n".join([*lines, f"Missing: {'; '.join(missing)}"] if missing else lines)


def _list_results(progress: Progress, record: Sequence[Message]) -> str:
    """Return the successful tool results of a goal as a text with a list, for a goal without a summary."""
    good = [result for result in results_of(progress, record) if result.error is None and result.content]
    return "\n".join(
        f"- {result.tool_name}: {result.fenced(truncate(result.content, MAX_SHOWN_CHARS))}" for result in good
    )


MAX_UNMET = 5
"""Maximum number of consecutive evaluations that find the goal not achieved."""
MAX_FORMAT_ATTEMPTS = 3
"""Maximum number of final answers that do not fit the `output=` type."""

_ROLES = {"plan": "planner", "summarize": "summarizer", "evaluate": "evaluator"}
_FORMAT = """\

You work towards the user's goal, one action at a time. Answer with exactly one JSON object and nothing else:
{"action": "<an action that is named at the end>", "params": {...}, "reasoning": "<why, in a sentence>"}

- plan: think of the steps that lead to the goal, before you do any of them.
- execute: use a tool; its result is the next message.
- summarize: say what was found so far, with all that the user needs, and nothing that was not found.
- evaluate: judge strictly whether what was found reaches the goal. Nobody but you checks it.
{% if profile.tools %}

The tools:
{% for tool in profile.tools %}
- {{ tool.name }}({{ tool.parameters.get("properties", {}) | join(", ") }}){{ ": " ~ tool.description if tool.description }}
{% endfor %}
{% endif %}
"""
_CIRCLES = (
    "You are going in circles: the same again will bring the same. Use other arguments, another tool, or another "
    "of the actions below."
)
_CLOSING = (
    'evaluate, params {"achieved": true or false, "answer": "<what was found, in words for the user, achieved or not>", '
    '"feedback": "<why>", "missing_items": ["..."]}'
)
_FINAL = "The goal is achieved. Give the final answer now, and no action."

_UNMET = f"{MAX_UNMET} evaluations in a row found it not achieved"
_STALLED = f"no progress: {MAX_STALLED} decisions in a row brought nothing new"
_EVALUATION_KEYS = ("achieved", "feedback", "missing_items", "suggestions", "answer")
"""Keys of an evaluation's parameters that are stored in the progress."""


class _Final(Protocol):
    """Reader of the final answer of a goal as the `output=` value; the answer is not parsed as a decision."""

    name: ClassVar[str] = "goal"
    template: ClassVar[str] = ""

    def read(self, answer: ModelResponse, view: TurnView) -> list[Outcome]:
        return [SendReply(text=answer_text(answer.text))]


class Goal(Protocol):
    """Protocol that plans, executes, summarizes and evaluates in a loop until the goal is achieved.

    Args:
        max_iterations: Maximum number of model calls for one goal; the last one is an evaluation.
        actions: Custom actions that the model may choose in addition to the built-in ones.
        output: Type or JSON Schema of the final answer, which is requested when the goal is achieved; None is plain text.
        tasks: If True, plans are lists of tasks, which the tool `run_tasks` executes immediately.
    """

    name: ClassVar[str] = "goal"
    lookback = 0
    limit_argument = "max_iterations"
    roles = ("planner", "executor", "summarizer", "evaluator", "finalizer")
    template: ClassVar[str] = WHO + _FORMAT

    def __init__(
        self,
        *,
        max_iterations: int = 20,
        actions: Iterable[CustomAction] = (),
        output: Any = None,
        tasks: bool = False,
    ) -> None:
        if max_iterations < 1:
            raise ConfigurationError(f"max_iterations= must be at least 1, not {max_iterations}")
        self.max_iterations: int = max_iterations
        actions = tuple(actions)
        self.actions = {action.name: action for action in actions}
        names = [action.name.casefold() for action in actions]
        if len(set(names)) != len(actions):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigurationError(f"two custom actions are named {twice!r}: rename one of them")
        self._decisions = DecisionReader(self.actions, tasks)
        self._with_tasks = tasks
        self._has_form = output is not None
        self._final: Protocol = WithOutput(_Final(), output) if self._has_form else _Final()

    def with_output(self, output: Any) -> "Goal":
        """Return a copy of this protocol with another type of the final answer."""
        other = copy.copy(self)
        other._has_form, other._final = True, WithOutput(_Final(), output)  # noqa: SLF001 - a copy of this object
        return other

    def shortfall(self, message_type: str | None) -> str | None:
        return None if message_type in (None, *WHOLE) else message_type

    def script(self, text: str, call: ToolCall | None = None) -> Sequence[str]:
        steps: list[Mapping[str, Any]] = [{"action": "plan", "params": {"steps": ["answer"]}}]
        if call is not None:
            steps.append({"action": "execute", "params": {"tool": call.name, "args": call.arguments}})
        steps.append({"action": "summarize", "params": {"summary": text}})
        steps.append({"action": "evaluate", "params": {"achieved": True}})
        return [json.dumps(step) for step in steps]

    # --- requests -----------------------------------------------------------------------

    def request(self, view: TurnView) -> Request:
        progress = progress_of(view)
        if progress.phase == "finalizing":
            request = self._final.request(view)
            return attrs.evolve(request, tail=f"{_FINAL}\n{request.tail}", model="finalizer")
        choice = self._choice(progress, view)
        is_first = progress.phase == "initial"
        model = _ROLES.get(choice[0], "executor") if len(choice) == 1 or is_first else "executor"
        return Request(tail=self._tail(progress, view, choice), model=model, is_plan=model == _ROLES["plan"])

    def _choice(self, progress: Progress, view: TurnView) -> list[str]:
        """Return the names of the actions that the next model call may choose.

        Near the limit of model calls, only the evaluation is offered.
        """
        if self._is_closing(progress):
            return ["evaluate"]
        if progress.asked:
            return [progress.asked]
        choice = offered_actions(progress, has_tools=bool(view.tools))
        return [*choice, *self.actions] if progress.phase in OPEN_PHASES else choice

    def _is_closing(self, progress: Progress) -> bool:
        """Return True if the remaining model calls are reserved for the evaluation and the final answer."""
        reserved = min(2 if self._has_form else 1, self.max_iterations - 1)
        return progress.calls >= self.max_iterations - reserved

    def _tail(self, progress: Progress, view: TurnView, choice: Sequence[str]) -> str:
        lines = [f"The goal: {truncate(progress.goal, MAX_SHOWN_CHARS)}", *self._situation(progress, view)]
        if len(choice) == 1:
            form = _CLOSING if self._is_closing(progress) else self._form(choice[0])
            lines.append(f"Answer with this action, and no other:\n- {form}")
        else:
            lines.append("Answer with one of these actions:")
            lines += [f"- {self._form(action)}" for action in choice]
        return "\n".join(lines)

    def _form(self, action: str) -> str:
        if own := self.actions.get(action):
            return f"{own.name}, params {to_text(own.params)}: {own.description}"
        return TASKS_FORM if action == "plan" and self._with_tasks else FORMS[action]

    def _situation(self, progress: Progress, view: TurnView) -> list[str]:
        """Return lines for the model about the state of the goal loop, such as the number of remaining calls."""
        lines = [f"Iteration {progress.calls + 1} of {self.max_iterations}."]
        if self._is_closing(progress):
            lines.append(
                "The limit is reached: no further tools. Say honestly what was found and what is missing."
            )
        if progress.plan:
            lines.append("The plan: " + " ".join(f"{n}. {step}" for n, step in enumerate(progress.plan, 1)))
        if self._with_tasks:
            lines += failure_lines(tasks_in(view.state, progress.turn))
        known = (*progress.used_tools, *HELPER_TOOLS, RUN_TASKS)
        unused = [tool.name for tool in view.tools if tool.name not in known]
        if unused and progress.used_tools:
            lines.append(f"Tools that were not used yet: {', '.join(unused)}.")
        lines += tool_changes(view)
        lines += feedback(progress)
        if progress.stalled > 1:
            lines.append(f"The last {progress.stalled} decisions brought nothing new; {MAX_STALLED} end it.")
        return [*lines, _CIRCLES] if detect_action_loop(progress.actions) else lines

    # --- answers --------------------------------------------------------------------

    def read(self, answer: ModelResponse, view: TurnView) -> list[Outcome]:
        text = answer_text(answer.text)
        progress = progress_of(view)
        if progress.phase == "finalizing":
            return self._finalize(answer, progress, view)
        decision = self._decision(text, progress, view)
        reason = rejection_reason(decision.action, progress, has_tools=bool(view.tools))
        reason = reason or self._plan_limit_reason(decision, progress, view)
        if self._is_closing(progress):
            return self._execute_last(decision, reason, progress, view)
        if reason:
            return self._reject(decision.action, reason, progress, view)
        return self._execute(decision, progress, view)

    def _plan_limit_reason(self, decision: Decision, progress: Progress, view: TurnView) -> str | None:
        """Return an error text if a decision contains tasks and the goal has reached the maximum number of task plans, else None."""
        if decision.action != "plan" or "tasks" not in decision.params or not self._with_tasks:
            return None
        plans = max((task.cycle for task in tasks_in(view.state, progress.turn)), default=0)
        return f"{MAX_PLANS} plans of tasks were carried out" if plans >= MAX_PLANS else None

    def _decision(self, text: str, progress: Progress, view: TurnView) -> Decision:
        if encoded := parse_encoded_calls(text):
            return Decision("execute", {}, encoded.calls)
        return self._decisions.read(text, needs_params=len(self._choice(progress, view)) == 1)

    def _execute_last(
        self, decision: Decision, reason: str | None, progress: Progress, view: TurnView
    ) -> list[Outcome]:
        """Execute the last decision that the step limit permits, if it evaluates the goal. Otherwise end the goal as incomplete.

        `reason` says why the decision is not possible; None if it is. The evaluation "not achieved" is always possible.
        """
        is_unmet = decision.params.get("achieved") is False
        if decision.action == "evaluate" and (is_unmet or not reason):
            return self._execute(decision, progress, view)
        progress.summary = decision.params.get("summary") or progress.summary
        return self._end(progress, view, "incomplete", error=self._limit)

    def _reject(self, action: str, reason: str, progress: Progress, view: TurnView) -> list[Outcome]:
        """Reject a valid decision that is not possible now. Add a note for the model that lists the possible actions."""
        possible = ", ".join(self._choice(progress, view))
        progress.add_action(f"refused {action}")
        note = f"{action} is not possible now: {reason}. Possible: {possible}."
        return self._on_stalled(progress, view) or _continue(progress, note)

    def _on_stalled(self, progress: Progress, view: TurnView) -> list[Outcome]:
        """Count a decision without a new result. After too many of them in a row, return the outcomes that end the goal."""
        progress.stall()
        if progress.stalled < MAX_STALLED:
            return []
        return self._end(progress, view, "incomplete", error=_STALLED)

    def _end_if_stalled(self, outcomes: list[Outcome], progress: Progress, view: TurnView) -> list[Outcome]:
        is_over = progress.stalled >= MAX_STALLED
        return self._end(progress, view, "incomplete", error=_STALLED) if is_over else outcomes

    def _execute(self, decision: Decision, progress: Progress, view: TurnView) -> list[Outcome]:
        action, params = decision.action, decision.params
        if action not in ACTIONS or action == "execute":
            own = self.actions.get(action)
            outcomes = (
                _run_custom(own, params, progress, view) if own else _call_tools(decision.calls, progress)
            )
            return self._end_if_stalled(outcomes, progress, view)
        if not params:
            progress.asked = action
            return _continue(progress)
        progress.add_action(action)
        if action == "evaluate":
            return self._store_evaluation(params, progress, view)
        return self._store_text(action, params, progress, view)

    def _store_text(
        self, action: str, params: Mapping[str, Any], progress: Progress, view: TurnView
    ) -> list[Outcome]:
        """Store the plan or summary of a decision, and continue. A plan of tasks is run with the tool `run_tasks` instead.

        A repeated plan or summary counts as a decision without a new result.
        """
        if self._with_tasks and "tasks" in params:
            tasks = tasks_to_arguments(params["tasks"])
            progress.plan = [task["description"] for task in tasks]
            call = ToolCall(RUN_TASKS, {"tasks": tasks}, native=False)
            return self._end_if_stalled(_call_tools([call], progress), progress, view)
        is_again = bool(progress.plan if action == "plan" else progress.summary)
        progress.phase, progress.asked = LEADS_TO[action], ""
        if action == "plan":
            progress.plan = params["steps"]
        else:
            progress.summary = params["summary"]
        return (is_again and self._on_stalled(progress, view)) or _continue(progress)

    def _store_evaluation(
        self, params: Mapping[str, Any], progress: Progress, view: TurnView
    ) -> list[Outcome]:
        is_forced = self._is_closing(progress) and progress.phase != "summarizing"
        progress.phase, progress.asked = "evaluating", ""
        progress.evaluation = {name: params[name] for name in _EVALUATION_KEYS if name in params}
        progress.achieved = params["achieved"]
        if progress.achieved:
            progress.unmet = 0
            return self._on_achieved(progress, view, is_forced=is_forced)
        progress.unmet += 1
        if is_forced:
            progress.summary = progress.summary or (params.get("answer") or "").strip()
        return self._on_unmet(progress, view)

    def _on_unmet(self, progress: Progress, view: TurnView) -> list[Outcome]:
        if progress.unmet >= MAX_UNMET:
            return self._end(progress, view, "incomplete", error=_UNMET)
        if self._is_closing(progress) or progress.calls + 1 >= self.max_iterations:
            status: Status = "completed_with_summary_fallback" if progress.summary else "incomplete"
            return self._end(progress, view, status, error=self._limit)
        return self._on_stalled(progress, view) or _continue(progress)

    def _on_achieved(self, progress: Progress, view: TurnView, *, is_forced: bool) -> list[Outcome]:
        if not self._has_form:
            status: Status = "completed_with_summary_fallback" if is_forced else "completed"
            return self._end(progress, view, status)
        if progress.calls + 1 >= self.max_iterations:
            return self._end(progress, view, "completed_without_formatting", error=self._limit)
        progress.phase = "finalizing"
        return _continue(progress)

    def _finalize(self, answer: ModelResponse, progress: Progress, view: TurnView) -> list[Outcome]:
        """Parse the final answer as the `output=` type. After too many invalid answers, end with plain text and a matching status."""
        try:
            outcomes = self._final.read(answer, view)
        except ParseError as error:
            progress.tries += 1
            if progress.tries < MAX_FORMAT_ATTEMPTS and progress.calls + 1 < self.max_iterations:
                return _continue(progress, f"That does not have the form: {error.reason.rstrip('.')}.")
            return self._end(progress, view, "completed_without_formatting", error=error.reason)
        (reply,) = [outcome for outcome in outcomes if isinstance(outcome, SendReply)]
        # A turn that started with its own `output=` may resume after a restart, when that type is unknown.
        status: Status = "completed_with_formatting" if self._has_form else "completed"
        return self._end(progress, view, status, data=reply.data)

    def _end(
        self,
        progress: Progress,
        view: TurnView,
        status: Status,
        *,
        error: str | None = None,
        data: Any = None,
    ) -> list[Outcome]:
        progress.phase, progress.status, progress.error = "ended", status, error
        reply = SendReply(text=closing_text(progress, view.record), data=data, message_type=status)
        return [_store_progress(progress), reply]

    @property
    def _limit(self) -> str:
        return f"the limit of {counted(self.max_iterations, 'iteration')} was reached (max_iterations={self.max_iterations})"


# --- outcomes --------------------------------------------------------------------------------


def _store_progress(progress: Progress) -> UpdateState:
    change = stored_progress(progress)
    return UpdateState(lambda _: change)


def _continue(progress: Progress, note: str = "") -> list[Outcome]:
    return [_store_progress(progress), Continue(progress.phase, note)]


def _call_tools(calls: Sequence[ToolCall], progress: Progress) -> list[Outcome]:
    for call in calls:
        progress.add_call(call)
    progress.phase, progress.asked = "executing", ""
    return [_store_progress(progress), CallTools(calls, progress.phase)]


def _run_custom(
    own: CustomAction, params: Mapping[str, Any], progress: Progress, view: TurnView
) -> list[Outcome]:
    """Run a custom action. If it raises or returns an invalid change, the model gets the error and the state is unchanged."""
    progress.add_action(f"{own.name} {canonical_json(params)}")
    try:
        state = copy_state(view.state, goal_view(view.state, view.record))
        changes = parse_changes(own.run(state, params))
        note = f"{own.name}: {to_text(changes)}"
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - user code may raise anything; the model gets the error
        error = convert_user_error(raised, "action", own.name)
        progress.has_failed = True
        progress.stall()
        return _continue(progress, f"{own.name}: Error: {describe(error)}")  # noqa: ASYNC104
    progress.phase, progress.asked = "executing", ""
    if not (changes and progress.add_digest(f"{own.name} {canonical_json(params)} {to_text(changes)}")):
        progress.stall()
    if changes:
        progress.found += len(changes)
        progress.summary = ""
    return [UpdateState(lambda _: list(changes.items())), *_continue(progress, note)]


# --- goal state machine ----------------------------------------------------------------------

TRANSITIONS: Mapping[Phase, tuple[str, ...]] = {
    "initial": ("plan", "execute"),
    "planning": ("execute", "summarize"),
    "executing": ("execute", "summarize", "evaluate", "plan"),
    "summarizing": ("evaluate",),
    "evaluating": ("plan", "execute"),
}
LEADS_TO: Mapping[str, Phase] = {
    "plan": "planning",
    "execute": "executing",
    "summarize": "summarizing",
    "evaluate": "evaluating",
}
OPEN_PHASES: tuple[Phase, ...] = ("initial", "planning", "executing", "evaluating")
"""Phases in which custom actions are offered. After a summary, only an evaluation is offered."""


def offered_actions(progress: Progress, *, has_tools: bool) -> list[str]:
    """Return the actions to offer to the model in the current phase of the goal.

    Possible actions that make no sense yet are left out, such as another plan while all calls succeed.
    """
    row = TRANSITIONS.get(progress.phase, ())
    return [
        action
        for action in row
        if rejection_reason(action, progress, has_tools=has_tools) is None
        and not (action == "plan" and progress.phase == "executing" and not progress.has_failed)
        and not (action == "summarize" and progress.phase == "planning" and has_tools)
    ]


def rejection_reason(action: str, progress: Progress, *, has_tools: bool) -> str | None:
    """Return the reason why an action is not possible now; None if the action is possible.

    Calls need tools. A summary or an evaluation needs earlier results; without tools, a summary needs none.
    """
    if action == "execute" and not has_tools:
        return "there are no tools"
    has_results = bool(progress.used_tools or progress.found)
    if action == "summarize" and has_tools and not has_results:
        return "nothing was done yet that could be summarized"
    if action == "evaluate" and not progress.summary and not has_results:
        return f"nothing was {'done' if has_tools else 'summed up'} yet that could be judged"
    return None
