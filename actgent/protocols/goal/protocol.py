"""The `goal` protocol: decide, act and look what came of it, until an evaluation finds the goal achieved.

Each user message is a goal. Each model call is one decision, which is carried out at once: a plan, tool calls, a
summary, an evaluation, or an action of one's own. What may come next stands in `goal_transitions`; where only one
action may, it is asked for alone, from the model of its role: `planner`, `executor`, `summarizer`, `evaluator`, and
`finalizer` for an answer of a declared form.

How it ends is the reply's `message_type`, one of `goal_progress.Status`. At the limit what was found is summed up and
judged once more, and said as what it is; `achieved` is set by an evaluation and by nothing else.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from actgent.errors import ConfigurationError, ParseError
from actgent.llm.base import Answer
from actgent.messages import Message, ToolCall
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
from actgent.protocols.renderings import tool_documentation
from actgent.support.foreign import failure_of
from actgent.tools.outputs.results import canonical, capped, describe, to_text
from actgent.tools.registry import AIDS
from actgent.tools.state import changes_of

from .decisions import FORMS, CustomAction, Decision, DecisionReader
from .progress import (
    WHOLE,
    Progress,
    Status,
    detect_action_loop,
    kept,
    progress_of,
    results_of,
    signature,
)
from .transitions import LEADS_TO, OPEN_PHASES, allowed, refusal

MAX_UNMET = 5
"""Evaluations in a row that may find the goal not achieved."""
FORMAT_TRIES = 3
"""Final answers that may miss the declared form."""
CLOSING_CALLS = 9
"""Model calls beyond the limit: a summary, an evaluation and a final answer, each asked up to three times."""
SHOWN_CHARACTERS = 2_000
"""Of the goal where it is said again, and of each result that stands in for words."""

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
- {{ tool.name }}({{ tool.parameters.get("properties", {}) | join(", ") }}){% if tool.description %}: {{ tool.description }}{% endif %}
{% endfor %}
{% endif %}
"""
_CIRCLES = (
    "You are going in circles: the same again will bring the same. Use other arguments, another tool, or another "
    "of the actions below."
)
_FINAL = "The goal is achieved. Give the final answer now, and no action."

_UNMET = f"{MAX_UNMET} evaluations in a row found it not achieved"
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
        max_iterations: Model calls for one goal; the summing up at the limit comes on top (see `CLOSING_CALLS`).
        actions: What the model may choose beside the loop's own actions.
        output: A type or JSON Schema that the final answer has to fit; asked for when the goal is achieved.
    """

    name: ClassVar[str] = "goal"
    lookback = 0
    template: ClassVar[str] = WHO + _FORMAT

    def __init__(
        self, *, max_iterations: int = 20, actions: Iterable[CustomAction] = (), output: Any = None
    ) -> None:
        if max_iterations < 1:
            raise ConfigurationError(f"max_iterations={max_iterations}: at least 1")
        self.iterations = max_iterations
        self.max_iterations = max_iterations + CLOSING_CALLS
        given = tuple(actions)
        self.actions = {action.name: action for action in given}
        if len(self.actions) != len(given):
            names = [action.name for action in given]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigurationError(f"two custom actions are named {twice!r}: each needs a name of its own")
        self._decisions = DecisionReader(self.actions)
        self._has_form = output is not None
        self._final: Protocol = WithOutput(_Final(), output) if self._has_form else _Final()

    def with_output(self, output: Any) -> "Goal":
        """The same loop with another form of the final answer."""
        other = copy.copy(self)
        other._has_form, other._final = True, WithOutput(_Final(), output)  # noqa: SLF001 - of our own kind
        return other

    def shortfall(self, message_type: str | None) -> str | None:
        return None if message_type in (None, *WHOLE) else message_type

    # --- what is asked -----------------------------------------------------------------------

    def request(self, view: View) -> Request:
        progress = progress_of(view)
        if progress.phase == "finalizing":
            request = self._final.request(view)
            return attrs.evolve(request, tail=f"{_FINAL}\n{request.tail}", model="finalizer")
        choice = self._choice(progress, view)
        model = _ROLES.get(choice[0], "executor") if len(choice) == 1 else "executor"
        return Request(tail=self._tail(progress, view, choice), model=model)

    def _choice(self, progress: Progress, view: View) -> list[str]:
        """The actions that may be chosen now."""
        if progress.calls >= self.iterations:
            return ["evaluate" if progress.phase == "summarizing" else "summarize"]
        if progress.asked:
            return [progress.asked]
        choice = allowed(progress, has_tools=bool(view.tools))
        return [*choice, *self.actions] if progress.phase in OPEN_PHASES else choice

    def _tail(self, progress: Progress, view: View, choice: Sequence[str]) -> str:
        lines = [f"The goal: {capped(progress.goal, SHOWN_CHARACTERS)}", *self._situation(progress, view)]
        if len(choice) == 1:
            lines.append(f"Answer with this action, and no other:\n- {self._form(choice[0])}")
        else:
            lines.append("Answer with one of these actions:")
            lines += [f"- {self._form(action)}" for action in choice]
        return "\n".join(lines)

    def _form(self, action: str) -> str:
        if own := self.actions.get(action):
            return f"{own.name}, params {to_text(own.params)}: {own.description}"
        return FORMS[action]

    def _situation(self, progress: Progress, view: View) -> list[str]:
        """Where the loop stands, as far as the conversation does not say it."""
        lines = [f"Iteration {min(progress.calls + 1, self.iterations)} of {self.iterations}."]
        if progress.calls >= self.iterations:
            lines.append(
                "The limit is reached: no further tools. Say honestly what was found and what is missing."
            )
        if progress.plan:
            lines.append("The plan: " + " ".join(f"{n}. {step}" for n, step in enumerate(progress.plan, 1)))
        unused = [tool.name for tool in view.tools if tool.name not in (*progress.used_tools, *AIDS)]
        if unused and progress.used_tools:
            lines.append(f"Tools that were not used yet: {', '.join(unused)}.")
        lines += _moved_tools(view)
        lines += _feedback(progress)
        return [*lines, _CIRCLES] if detect_action_loop(progress.actions) else lines

    # --- what is answered --------------------------------------------------------------------

    def read(self, answer: Answer, view: View) -> list[Outcome]:
        text = answer_text(answer.text)
        progress = progress_of(view)
        if progress.phase == "finalizing":
            return self._finalized(answer, progress, view)
        choice = self._choice(progress, view)
        if encoded := encoded_calls(text):
            decision = Decision("execute", {}, encoded.calls)
        else:
            decision = self._decisions.read(text, needs_params=len(choice) == 1)
        if decision.action not in choice:
            return self._refused(decision.action, progress, view, choice)
        return self._carried_out(decision, progress, view)

    def _refused(self, action: str, progress: Progress, view: View, choice: Sequence[str]) -> list[Outcome]:
        """A sound decision that cannot come now: said so, and what can; nothing else is done in its place.

        At the limit it ends the goal: who does not sum up when nothing else is asked for is not asked on.
        """
        if progress.calls >= self.iterations:
            return self._ended(progress, view, "incomplete", error=self._limit)
        reason = refusal(action, progress, has_tools=bool(view.tools)) or "something else is asked for"
        note = f"{action} is not possible now: {reason}. Possible: {', '.join(choice)}."
        progress.add_action(f"refused {action}")
        return _going_on(progress, note)

    def _carried_out(self, decision: Decision, progress: Progress, view: View) -> list[Outcome]:
        action, params = decision.action, decision.params
        if own := self.actions.get(action):
            return _own(own, params, progress, view)
        if action == "execute":
            return _executed(decision.calls, progress)
        if not params:
            progress.asked = action
            return _going_on(progress)
        progress.add_action(action)
        progress.phase, progress.asked = LEADS_TO[action], ""
        if action == "plan":
            progress.plan = params["steps"]
            return _going_on(progress)
        if action == "summarize":
            progress.summary = params["summary"]
            return self._summarized(progress, view)
        progress.evaluation = {name: params[name] for name in _JUDGED if name in params}
        return self._evaluated(progress, view, achieved=params["achieved"])

    def _summarized(self, progress: Progress, view: View) -> list[Outcome]:
        if progress.calls >= self.iterations and view.tools and not progress.found:
            return self._ended(progress, view, "incomplete", error=self._limit)  # there is nothing to judge
        return _going_on(progress)

    def _evaluated(self, progress: Progress, view: View, *, achieved: bool) -> list[Outcome]:
        progress.achieved = achieved
        progress.unmet = 0 if achieved else progress.unmet + 1
        if achieved and self._has_form:
            progress.phase = "finalizing"
            return _going_on(progress)
        if achieved and progress.calls < self.iterations:
            return self._ended(progress, view, "completed")
        if achieved:
            return self._ended(progress, view, "completed_with_summary_fallback")
        if progress.unmet >= MAX_UNMET:
            return self._ended(progress, view, "incomplete", error=_UNMET)
        if progress.calls + 1 < self.iterations:
            return _going_on(progress)
        status: Status = "completed_with_summary_fallback" if progress.summary else "incomplete"
        return self._ended(progress, view, status, error=self._limit)

    def _finalized(self, answer: Answer, progress: Progress, view: View) -> list[Outcome]:
        """The answer in its declared form; after some tries without it, in words alone, and marked so."""
        try:
            outcomes = self._final.read(answer, view)
        except ParseError as error:
            progress.tries += 1
            if progress.tries < FORMAT_TRIES:
                return _going_on(progress, f"That does not have the form: {error.reason.rstrip('.')}.")
            return self._ended(progress, view, "completed_without_formatting", error=error.reason)
        (said,) = [outcome for outcome in outcomes if isinstance(outcome, Say)]
        # A turn that was begun with a form of its own may go on after a restart, where nobody knows the form.
        status: Status = "completed_with_formatting" if self._has_form else "completed"
        return self._ended(progress, view, status, data=said.data)

    def _ended(
        self, progress: Progress, view: View, status: Status, *, error: str | None = None, data: Any = None
    ) -> list[Outcome]:
        progress.iterations = min(progress.calls + 1, self.iterations)
        progress.phase, progress.status, progress.error = "ended", status, error
        said = Say(text=closing_words(progress, view.record), data=data, message_type=status)
        return [_keeping(progress), said]

    @property
    def _limit(self) -> str:
        return f"the limit of {self.iterations} iterations was reached"


# --- outcomes --------------------------------------------------------------------------------


def _keeping(progress: Progress) -> Change:
    change = kept(progress)
    return Change(lambda _: change)


def _going_on(progress: Progress, note: str = "") -> list[Outcome]:
    return [_keeping(progress), Continue(progress.phase, note)]


def _executed(calls: Sequence[ToolCall], progress: Progress) -> list[Outcome]:
    for call in calls:
        progress.add_action(signature(call))
    progress.phase, progress.asked = "executing", ""
    return [_keeping(progress), CallTools(calls, progress.phase)]


def _own(own: CustomAction, params: Mapping[str, Any], progress: Progress, view: View) -> list[Outcome]:
    """Carry out a custom action; what it raises or wrongly returns is told, and changes nothing."""
    progress.add_action(f"{own.name} {canonical(params)}")
    try:
        changes = changes_of(own.run(copy.deepcopy(dict(view.state)), params))
        note = f"{own.name}: {to_text(changes)}"
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code: the model reads of it
        error = failure_of(raised, "action", own.name)
        progress.has_failed = True
        return _going_on(progress, f"{own.name}: Error: {describe(error)}")  # noqa: ASYNC104
    progress.phase = "executing"
    if changes:
        progress.found += len(changes)
        progress.summary = ""
    return [Change(lambda _: list(changes.items())), *_going_on(progress, note)]


# --- words -----------------------------------------------------------------------------------


def _moved_tools(view: View) -> list[str]:
    """List the tools that came and went since, which the system prompt does not know, as it never moves."""
    told, now = view.profile.tools, view.tools
    if told is now or told == now:
        return []
    return ["The tools have changed since.", tool_documentation(now) or "There are none any more."]


def _feedback(progress: Progress) -> list[str]:
    """Return what the last evaluation said, as long as the goal is not achieved."""
    evaluation = progress.evaluation
    if evaluation is None or progress.achieved:
        return []
    lines = [f"The last evaluation: not achieved. {evaluation.get('feedback') or ''}".rstrip()]
    if missing := evaluation.get("missing_items"):
        lines.append(f"Missing: {'; '.join(missing)}.")
    if suggestions := evaluation.get("suggestions"):
        lines.append(f"Suggestions: {'; '.join(suggestions)}.")
    return lines


def closing_words(progress: Progress, record: Sequence[Message]) -> str:
    """Render the user's text: the answer, or else what was found; and what is missing, if it is not achieved."""
    evaluation = progress.evaluation or {}
    found: str = progress.summary or _listed(progress, record) or "Nothing was found."
    if progress.achieved:
        return (evaluation.get("answer") or "").strip() or found
    missing = evaluation.get("missing_items")
    lines = [f"The goal was not achieved: {progress.error}.", found]
    return "\n\n".join([*lines, f"Missing: {'; '.join(missing)}"] if missing else lines)


def _listed(progress: Progress, record: Sequence[Message]) -> str:
    """The results themselves, where nobody put them into words."""
    good = [result for result in results_of(progress, record) if result.error is None and result.content]
    return "\n".join(
        f"- {result.tool_name}: {result.fenced(capped(result.content, SHOWN_CHARACTERS))}" for result in good
    )
