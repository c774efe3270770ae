"""The `goal` protocol: decide, act and look what came of it, until an evaluation finds the goal achieved.

Each user message is a goal. Each model call is one decision, which is carried out at once: a plan, tool calls, a
summary, an evaluation, or an action of one's own. What is offered next stands in `transitions`; where that is only one
action, it is asked for alone, from the model of its role: `planner`, `executor`, `summarizer`, `evaluator`, and
`finalizer` for an answer of a declared form. What else a model decides is carried out too, where that is possible.

How it ends is the reply's `message_type`, one of `progress.Status`. The last call of those that there are is kept for
an evaluation, which says what was found; `achieved` is set by an evaluation and by nothing else.
"""

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from actgent.errors import ConfigurationError, ParseError
from actgent.errors.printable import counted
from actgent.llm.base import Answer
from actgent.messages import ToolCall
from actgent.protocols.actions import answer_text, encoded_calls
from actgent.protocols.base import (
    CallTools,
    Change,
    Continue,
    Outcome,
    Protocol,
    Request,
    Say,
    View,
    WithOutput,
)
from actgent.protocols.prompts import WHO
from actgent.support.foreign import failure_of
from actgent.tools.outputs.moved import whole_state
from actgent.tools.outputs.results import canonical, capped, describe, to_text
from actgent.tools.registry import AIDS
from actgent.tools.state import changes_of

from .decisions import ACTIONS, FORMS, CustomAction, Decision, DecisionReader
from .progress import (
    MAX_STALLED,
    WHOLE,
    Progress,
    Status,
    detect_action_loop,
    goal_view,
    kept,
    progress_of,
)
from .tasks import MAX_PLANS, RUN_TASKS, TASKS_FORM, failures, tasks_in, written_tasks
from .transitions import LEADS_TO, OPEN_PHASES, offered, refusal
from .wording import SHOWN_CHARACTERS, closing_words, feedback, moved_tools

MAX_UNMET = 5
"""Evaluations in a row that may find the goal not achieved."""
FORMAT_TRIES = 3
"""Final answers that may miss the declared form."""

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
_JUDGED = ("achieved", "feedback", "missing_items", "suggestions", "answer")
"""What is kept of an evaluation."""


class _Final(Protocol):
    """The last words, which need no decision."""

    name: ClassVar[str] = "goal"
    template: ClassVar[str] = ""

    def read(self, answer: Answer, view: View) -> list[Outcome]:
        return [Say(text=answer_text(answer.text))]


class Goal(Protocol):
    """A loop over a store: plan, execute, summarize and evaluate until the goal is achieved.

    Args:
        max_iterations: Model calls for one goal, at most; the last is an evaluation of what was found.
        actions: What the model may choose beside the loop's own actions.
        output: A type or JSON Schema that the final answer has to fit; asked for when the goal is achieved.
        tasks: True: plans are lists of tasks, which the tool `run_tasks` carries out at once.
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
            raise ConfigurationError(f"max_iterations={max_iterations}: at least 1")
        self.max_iterations: int = max_iterations
        given = tuple(actions)
        self.actions = {action.name: action for action in given}
        names = [action.name.casefold() for action in given]
        if len(set(names)) != len(given):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigurationError(f"two custom actions are named {twice!r}: each needs a name of its own")
        self._decisions = DecisionReader(self.actions, tasks)
        self._with_tasks = tasks
        self._has_form = output is not None
        self._final: Protocol = WithOutput(_Final(), output) if self._has_form else _Final()

    def with_output(self, output: Any) -> "Goal":
        """The same loop with another form of the final answer."""
        other = copy.copy(self)
        other._has_form, other._final = True, WithOutput(_Final(), output)  # noqa: SLF001 - of our own kind
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

    # --- what is asked -----------------------------------------------------------------------

    def request(self, view: View) -> Request:
        progress = progress_of(view)
        if progress.phase == "finalizing":
            request = self._final.request(view)
            return attrs.evolve(request, tail=f"{_FINAL}\n{request.tail}", model="finalizer")
        choice = self._choice(progress, view)
        is_first = progress.phase == "initial"
        model = _ROLES.get(choice[0], "executor") if len(choice) == 1 or is_first else "executor"
        return Request(tail=self._tail(progress, view, choice), model=model)

    def _choice(self, progress: Progress, view: View) -> list[str]:
        """The actions that are offered now."""
        if self._is_closing(progress):
            return ["evaluate"]
        if progress.asked:
            return [progress.asked]
        choice = offered(progress, has_tools=bool(view.tools))
        return [*choice, *self.actions] if progress.phase in OPEN_PHASES else choice

    def _is_closing(self, progress: Progress) -> bool:
        """Return True if what calls are left are kept for an evaluation, and for an answer of a declared form."""
        kept = min(2 if self._has_form else 1, self.max_iterations - 1)
        return progress.calls >= self.max_iterations - kept

    def _tail(self, progress: Progress, view: View, choice: Sequence[str]) -> str:
        lines = [f"The goal: {capped(progress.goal, SHOWN_CHARACTERS)}", *self._situation(progress, view)]
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

    def _situation(self, progress: Progress, view: View) -> list[str]:
        """Where the loop stands, as far as the conversation does not say it."""
        lines = [f"Iteration {progress.calls + 1} of {self.max_iterations}."]
        if self._is_closing(progress):
            lines.append(
                "The limit is reached: no further tools. Say honestly what was found and what is missing."
            )
        if progress.plan:
            lines.append("The plan: " + " ".join(f"{n}. {step}" for n, step in enumerate(progress.plan, 1)))
        if self._with_tasks:
            lines += failures(tasks_in(view.state, progress.turn))
        known = (*progress.used_tools, *AIDS, RUN_TASKS)
        unused = [tool.name for tool in view.tools if tool.name not in known]
        if unused and progress.used_tools:
            lines.append(f"Tools that were not used yet: {', '.join(unused)}.")
        lines += moved_tools(view)
        lines += feedback(progress)
        if progress.stalled > 1:
            lines.append(f"The last {progress.stalled} decisions brought nothing new; {MAX_STALLED} end it.")
        return [*lines, _CIRCLES] if detect_action_loop(progress.actions) else lines

    # --- what is answered --------------------------------------------------------------------

    def read(self, answer: Answer, view: View) -> list[Outcome]:
        text = answer_text(answer.text)
        progress = progress_of(view)
        if progress.phase == "finalizing":
            return self._finalized(answer, progress, view)
        decision = self._decision(text, progress, view)
        reason = refusal(decision.action, progress, has_tools=bool(view.tools))
        reason = reason or self._excess(decision, progress, view)
        if self._is_closing(progress):
            return self._closed(decision, reason, progress, view)
        if reason:
            return self._refused(decision.action, reason, progress, view)
        return self._carried_out(decision, progress, view)

    def _excess(self, decision: Decision, progress: Progress, view: View) -> str | None:
        """Why there may be no further plan of tasks."""
        if decision.action != "plan" or "tasks" not in decision.params or not self._with_tasks:
            return None
        plans = max((task.cycle for task in tasks_in(view.state, progress.turn)), default=0)
        return f"{MAX_PLANS} plans of tasks were carried out" if plans >= MAX_PLANS else None

    def _decision(self, text: str, progress: Progress, view: View) -> Decision:
        if encoded := encoded_calls(text):
            return Decision("execute", {}, encoded.calls)
        return self._decisions.read(text, needs_params=len(self._choice(progress, view)) == 1)

    def _closed(
        self, decision: Decision, reason: str | None, progress: Progress, view: View
    ) -> list[Outcome]:
        """The last decision there is: an evaluation, also one that finds nothing, or else the end."""
        is_unmet = decision.params.get("achieved") is False
        if decision.action == "evaluate" and (is_unmet or not reason):
            return self._carried_out(decision, progress, view)
        progress.summary = decision.params.get("summary") or progress.summary
        return self._ended(progress, view, "incomplete", error=self._limit)

    def _refused(self, action: str, reason: str, progress: Progress, view: View) -> list[Outcome]:
        """A sound decision that cannot be done now: said so, and what can; nothing else is done in its place."""
        possible = ", ".join(self._choice(progress, view))
        progress.add_action(f"refused {action}")
        note = f"{action} is not possible now: {reason}. Possible: {possible}."
        return self._stalled(progress, view) or _going_on(progress, note)

    def _stalled(self, progress: Progress, view: View) -> list[Outcome]:
        """A decision that brings nothing new: the end, if it is one too many, and else nothing."""
        progress.stall()
        if progress.stalled < MAX_STALLED:
            return []
        return self._ended(progress, view, "incomplete", error=_STALLED)

    def _unless_stalled(self, outcomes: list[Outcome], progress: Progress, view: View) -> list[Outcome]:
        is_over = progress.stalled >= MAX_STALLED
        return self._ended(progress, view, "incomplete", error=_STALLED) if is_over else outcomes

    def _carried_out(self, decision: Decision, progress: Progress, view: View) -> list[Outcome]:
        action, params = decision.action, decision.params
        if action not in ACTIONS or action == "execute":
            own = self.actions.get(action)
            outcomes = _own(own, params, progress, view) if own else _executed(decision.calls, progress)
            return self._unless_stalled(outcomes, progress, view)
        if not params:
            progress.asked = action
            return _going_on(progress)
        progress.add_action(action)
        if action == "evaluate":
            return self._evaluated(params, progress, view)
        return self._worded(action, params, progress, view)

    def _worded(
        self, action: str, params: Mapping[str, Any], progress: Progress, view: View
    ) -> list[Outcome]:
        """Take over a plan or a summary."""
        if self._with_tasks and "tasks" in params:
            tasks = written_tasks(params["tasks"])
            progress.plan = [task["description"] for task in tasks]
            call = ToolCall(RUN_TASKS, {"tasks": tasks}, native=False)
            return self._unless_stalled(_executed([call], progress), progress, view)
        is_again = bool(progress.plan if action == "plan" else progress.summary)
        progress.phase, progress.asked = LEADS_TO[action], ""
        if action == "plan":
            progress.plan = params["steps"]
        else:
            progress.summary = params["summary"]
        return (is_again and self._stalled(progress, view)) or _going_on(progress)

    def _evaluated(self, params: Mapping[str, Any], progress: Progress, view: View) -> list[Outcome]:
        is_forced = self._is_closing(progress) and progress.phase != "summarizing"
        progress.phase, progress.asked = "evaluating", ""
        progress.evaluation = {name: params[name] for name in _JUDGED if name in params}
        progress.achieved = params["achieved"]
        if progress.achieved:
            progress.unmet = 0
            return self._achieved(progress, view, is_forced=is_forced)
        progress.unmet += 1
        if is_forced:
            progress.summary = progress.summary or (params.get("answer") or "").strip()
        return self._unmet(progress, view)

    def _unmet(self, progress: Progress, view: View) -> list[Outcome]:
        if progress.unmet >= MAX_UNMET:
            return self._ended(progress, view, "incomplete", error=_UNMET)
        if self._is_closing(progress) or progress.calls + 1 >= self.max_iterations:
            status: Status = "completed_with_summary_fallback" if progress.summary else "incomplete"
            return self._ended(progress, view, status, error=self._limit)
        return self._stalled(progress, view) or _going_on(progress)

    def _achieved(self, progress: Progress, view: View, *, is_forced: bool) -> list[Outcome]:
        if not self._has_form:
            status: Status = "completed_with_summary_fallback" if is_forced else "completed"
            return self._ended(progress, view, status)
        if progress.calls + 1 >= self.max_iterations:
            return self._ended(progress, view, "completed_without_formatting", error=self._limit)
        progress.phase = "finalizing"
        return _going_on(progress)

    def _finalized(self, answer: Answer, progress: Progress, view: View) -> list[Outcome]:
        """The answer in its declared form; after some tries without it, in words alone, and marked so."""
        try:
            outcomes = self._final.read(answer, view)
        except ParseError as error:
            progress.tries += 1
            if progress.tries < FORMAT_TRIES and progress.calls + 1 < self.max_iterations:
                return _going_on(progress, f"That does not have the form: {error.reason.rstrip('.')}.")
            return self._ended(progress, view, "completed_without_formatting", error=error.reason)
        (said,) = [outcome for outcome in outcomes if isinstance(outcome, Say)]
        # A turn that was begun with a form of its own may go on after a restart, where nobody knows the form.
        status: Status = "completed_with_formatting" if self._has_form else "completed"
        return self._ended(progress, view, status, data=said.data)

    def _ended(
        self, progress: Progress, view: View, status: Status, *, error: str | None = None, data: Any = None
    ) -> list[Outcome]:
        progress.phase, progress.status, progress.error = "ended", status, error
        said = Say(text=closing_words(progress, view.record), data=data, message_type=status)
        return [_keeping(progress), said]

    @property
    def _limit(self) -> str:
        return f"the limit of {counted(self.max_iterations, 'iteration')} was reached (max_iterations={self.max_iterations})"


# --- outcomes --------------------------------------------------------------------------------


def _keeping(progress: Progress) -> Change:
    change = kept(progress)
    return Change(lambda _: change)


def _going_on(progress: Progress, note: str = "") -> list[Outcome]:
    return [_keeping(progress), Continue(progress.phase, note)]


def _executed(calls: Sequence[ToolCall], progress: Progress) -> list[Outcome]:
    for call in calls:
        progress.add_call(call)
    progress.phase, progress.asked = "executing", ""
    return [_keeping(progress), CallTools(calls, progress.phase)]


def _own(own: CustomAction, params: Mapping[str, Any], progress: Progress, view: View) -> list[Outcome]:
    """Carry out a custom action; what it raises or wrongly returns is told, and changes nothing."""
    progress.add_action(f"{own.name} {canonical(params)}")
    try:
        state = whole_state(view.state, goal_view(view.state, view.record))
        changes = changes_of(own.run(state, params))
        note = f"{own.name}: {to_text(changes)}"
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code: the model reads of it
        error = failure_of(raised, "action", own.name)
        progress.has_failed = True
        progress.stall()
        return _going_on(progress, f"{own.name}: Error: {describe(error)}")  # noqa: ASYNC104
    progress.phase, progress.asked = "executing", ""
    if not (changes and progress.take_news(f"{own.name} {canonical(params)} {to_text(changes)}")):
        progress.stall()
    if changes:
        progress.found += len(changes)
        progress.summary = ""
    return [Change(lambda _: list(changes.items())), *_going_on(progress, note)]
