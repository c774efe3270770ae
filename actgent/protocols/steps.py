"""The `steps` protocol: make a plan, take steps with tool calls, give the final answer.

Each answer of the model is one JSON object, and what it holds decides what it is:

    plan             what is to be done, in words; the model goes on with it
    tool_calls       a step, with `tool_thought`; the results come as the next message
    final_answer     the end of the turn, with `thought`

Calls come before an answer beside them, since an answer that was written before its results is a guess. A plan
beside something else is kept, too. Plain prose is a final answer; what looks like JSON and is none is not.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any, ClassVar, Literal
from zoneinfo import ZoneInfo

import attrs

from actgent.errors import ConfigurationError, ParseError
from actgent.llm.base import Answer
from actgent.messages import ToolCall
from actgent.structured.extract import extract, grown, visible

from .actions import answer_text, encoded_calls, misspelt
from .base import CallTools, Change, Continue, Outcome, Protocol, Request, Say, View, WithOutput
from .calls import CallForm, stray_arguments
from .growing import Growth, follow_strings
from .prompts import WHO

DEFAULT_ITERATIONS = 10
PLAN_KEY = "steps.plan"
"""Under which the last plan stands in the session's state."""
STEP = "step"
"""The stage after the first answer."""

_FORMAT = """\

Answer with exactly one JSON object and nothing else, one of these three:
{"plan": "<the steps that you will take, in words>"}
{"tool_thought": "<why>", "tool_calls": [{"id": "<a name for the call>", "tool_name": "<tool>", "parameters": {...}}]}
{"final_answer": "<what the user reads>", "thought": "<how you came to it>"}

Make a plan first where more than one step is needed. Calls of one step run in their order, and all results come
as the next message, so put only such calls together that do not need each other's results. Give the final answer once
nothing is left to do; it ends the conversation's turn.
"""
_BEGIN = "Answer with a plan, a step with tool calls, or the final answer."
_GO_ON = "Go on: answer with the next step's tool calls, or with the final answer."
_LAST = (
    "This is the last answer of this turn: give the final answer with what you know, and say what is missing."
)

_JSON_STARTS = ("{", "[", '"', "`")
_MEANT_AS_JSON = re.compile(
    r"""\{\s*["']|\b(?:final_answer|tool_calls|tool_thought|tool_name)\b|["']plan["']\s*:|^[^\S\n]*plan\s*:""",
    re.IGNORECASE | re.MULTILINE,
)

_NAMES = {name: name for name in ("plan", "tool_calls", "final_answer")}
_KEYS = frozenset((*_NAMES, "thought", "tool_thought"))
_CALL = CallForm(
    ("tool_name",), 'each of tool_calls needs {"id": ..., "tool_name": "<tool>", "parameters": {...}}'
)
_BROKEN = ("truncated", "broken", "nested")
"""What the reasons begin with for which JSON cannot be read."""
_NO_OBJECT = "the answer must be one JSON object"
_NO_STEP = 'the answer must be a JSON object with "plan", "tool_calls" or "final_answer"'
_FOREIGN = (None, _NO_OBJECT, _NO_STEP)
"""What is said of values that have nothing to do with the protocol, such as an example; None of a right one."""

Kind = Literal["plan", "step", "final"]


@attrs.frozen(kw_only=True)
class Step:
    """One answer in the form of the protocol, or what is seen of one that still grows."""

    kind: Kind
    plan: str = ""
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    answer: Any = None
    """The final answer: text, or any other JSON value."""

    @property
    def is_decided(self) -> bool:
        """Return True if more of a growing answer leaves its kind: empty members may stand before full ones."""
        return bool(self.plan or self.calls) or self.kind == "final"

    @property
    def answer_text(self) -> str:
        """The final answer as text."""
        return self.answer if isinstance(self.answer, str) else json.dumps(self.answer, ensure_ascii=False)


class Steps(Protocol):
    """Plan, steps, final answer.

    Args:
        timezone: In which the model is told the time, a name of the IANA database.
        final_answer_format: What the final answer should look like, in words for the model.
        max_iterations: Model calls a turn.

    Raises:
        ConfigurationError: the time zone is not known, or the number is not at least 1.
    """

    name: ClassVar[str] = "steps"
    lookback = 0
    limit_argument = "max_iterations"
    template: ClassVar[str] = WHO + _FORMAT

    def __init__(
        self,
        *,
        timezone: str = "UTC",
        final_answer_format: str = "",
        max_iterations: int = DEFAULT_ITERATIONS,
    ) -> None:
        if max_iterations < 1:
            raise ConfigurationError(f"max_iterations={max_iterations}: at least 1")
        self.max_iterations = max_iterations
        self.final_answer_format = final_answer_format
        self.set_timezone(timezone)

    def set_timezone(self, name: str) -> None:
        """Tell the time in another zone, from the next model call on.

        Raises:
            ConfigurationError: it is not known.
        """
        self._zone, self.timezone = _zone(name), name

    def request(self, view: View) -> Request:
        said = [self._clock(view.message.created_at), _BEGIN if view.stage is None else _GO_ON]
        if view.calls + 1 == self.max_iterations:
            said[1] = _LAST
        if self.final_answer_format:
            said.append(f"The final answer: {self.final_answer_format}")
        return Request(tail="\n".join(said))

    def read(self, answer: Answer, view: View) -> list[Outcome]:
        step = read_step(answer.text)
        kept: list[Outcome] = [Change(_keeping(step.plan))] if step.plan else []
        if step.kind == "final":
            data = None if isinstance(step.answer, str) else step.answer
            return [*kept, Say(text=step.answer_text, data=data)]
        return [*kept, CallTools(step.calls, STEP) if step.calls else Continue(STEP)]

    def partial(self, text: str) -> str | None:
        if "final_answer" not in text:
            return None
        step = grown_step(text)
        return step.answer if step and step.kind == "final" and isinstance(step.answer, str) else None

    def growth(self) -> Growth:
        return Growth(self.partial, follow_strings(self.partial))

    def script(self, text: str, call: ToolCall | None = None) -> Sequence[str]:
        return (json.dumps({"final_answer": text}),)

    def with_output(self, output: Any) -> Protocol:
        return StepsOutput(self, output)

    def _clock(self, seconds: float) -> str:
        now = datetime.fromtimestamp(seconds, self._zone)
        return f"It is {now:%A, %Y-%m-%d %H:%M} ({self.timezone})."


class StepsOutput(WithOutput):
    """`output=` for steps: only the final answer has to have the form, so no provider is to press all answers into it."""

    def request(self, view: View) -> Request:
        return attrs.evolve(super().request(view), response_format=None)

    def _may_be_value(self, error: ParseError) -> bool:
        return error.reason == _NO_STEP  # a plan or a step that cannot be read is none


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ConfigurationError(f"timezone={name!r} is not known: use a name like Europe/Oslo") from None


def _keeping(plan: str) -> Callable[[Mapping[str, Any]], tuple[str, str]]:
    return lambda _: (PLAN_KEY, plan)


# --- a whole answer --------------------------------------------------------------------------


def read_step(text: str) -> Step:
    """Read an answer.

    Raises:
        ParseError: it is not in the form, or asks for several different things.
        EmptyAnswer: there is nothing in it.
    """
    shown = answer_text(text)
    if calls := encoded_calls(shown):
        return Step(kind="step", calls=tuple(calls.calls))
    try:
        found = _objects(shown)
    except ParseError as error:
        if _is_prose(shown, error.reason):
            return Step(kind="final", answer=shown.strip())
        raise
    return _the_one(found, text)


def _objects(text: str) -> list[Step]:
    """All steps that a text holds, at least one, in order and each once.

    Raises:
        ParseError: there is none, one of them is wrong, or the text is cut or broken.
    """
    found: list[Step] = []
    wrong: list[str] = []
    seen: set[str] = set()

    def look(value: Any) -> str:
        reason = _reason(value)
        if reason is None and (step := _step(value)) not in found:
            found.append(step)
        if reason not in _FOREIGN:
            wrong.append(reason)
        seen.add(reason or "")
        return reason or ""

    try:
        extract(text, look)
    except ParseError as error:
        if error.reason not in seen or not (found or wrong):
            raise
    if wrong:  # calls that cannot be read are not passed over for an answer beside them
        raise ParseError(wrong[0], text)
    return found


def _the_one(found: list[Step], text: str) -> Step:
    """The first of several: a plan, or a step that only finals follow, which were written without its results."""
    first, *later = found
    if first.kind == "plan" or not later or (first.kind == "step" and all(s.kind == "final" for s in later)):
        return first
    raise ParseError(f"the answer holds {len(found)} different JSON objects: give exactly one", text)


def _is_prose(text: str, reason: str) -> bool:
    """True for words that were never meant as JSON; `reason` is why there is no step in them."""
    if reason == _NO_STEP or reason.startswith(_BROKEN) or text.count("```") % 2:
        return False
    return not (text.lstrip().startswith(_JSON_STARTS) or _MEANT_AS_JSON.search(text) or _is_json(text))


def _is_json(text: str) -> bool:
    """True for `null`, `5`, `true`: JSON, but no answer."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _reason(value: Any) -> str | None:
    if not isinstance(value, dict):
        return _NO_OBJECT
    if not value.keys() & _NAMES.keys():
        return _NO_STEP
    if reason := misspelt(value, _NAMES):
        return reason
    if calls := value.get("tool_calls"):
        return _calls_reason(calls) or stray_arguments(
            value, "tool_calls", known=_KEYS, are_bare=_CALL.is_bare(calls)
        )
    if (answer := value.get("final_answer")) is not None:
        return "final_answer is empty" if isinstance(answer, str) and not answer.strip() else None
    return None if _plan(value.get("plan")) else _nothing_reason(value)


def _nothing_reason(value: Mapping[str, Any]) -> str:
    """Explain what is missing in an object that holds no calls, no answer and no plan in words."""
    if "tool_calls" in value:
        return "there are no tool calls in tool_calls"
    return "plan must be text, or a list of texts" if "plan" in value else "final_answer is null"


def _calls_reason(calls: Any) -> str | None:
    if not isinstance(calls, list):
        return "tool_calls must be a list"
    return next(filter(None, (_CALL.reason(call, takes_any=True) for call in calls)), None)


def _step(value: dict[str, Any]) -> Step:
    """The step in an object that `_reason` found right."""
    calls, answer = value.get("tool_calls"), value.get("final_answer")
    kind: Kind = "step" if calls else "final" if answer is not None else "plan"
    return Step(
        kind=kind,
        plan=_plan(value.get("plan")),
        thought=_thought(value),
        calls=tuple(map(_call, calls or ())),
        answer=answer if kind == "final" else None,
    )


def _plan(plan: Any) -> str:
    """The words of a plan, a list joined by lines; none where it is something else."""
    if isinstance(plan, list) and all(isinstance(line, str) and line.strip() for line in plan):
        return "\n".join(plan)
    return plan if isinstance(plan, str) and plan.strip() else ""


def _thought(value: Mapping[str, Any]) -> str:
    thoughts = (value.get(name) for name in ("tool_thought", "thought"))
    return next((thought for thought in thoughts if isinstance(thought, str)), "")


def _call(call: Mapping[str, Any]) -> ToolCall:
    """A call as it is written; parameters that are no object stay text, so that it is answered with an error."""
    written = _CALL.read(call)
    parameters = written.arguments
    if not isinstance(parameters, dict):
        parameters = json.dumps(parameters, ensure_ascii=False)
    return ToolCall(written.name, parameters, provider_id=written.id, native=False)


# --- an answer that still grows --------------------------------------------------------------


def grown_step(text: str) -> Step | None:
    """Return what can be seen of a growing answer; None until its kind shows. For display only, never to act on."""
    shown = visible(text)
    value = grown(shown[max(shown.find("{"), 0) :])
    if not isinstance(value, dict):
        return None
    plan, calls, answer = (value.get(name) for name in ("plan", "tool_calls", "final_answer"))
    if isinstance(plan, str | list) and not calls and (plan or answer is None):
        lines = plan if isinstance(plan, list) else [plan]
        return Step(kind="plan", plan="\n".join(line for line in lines if isinstance(line, str)))
    if isinstance(calls, list) and (calls or answer is None):
        whole = tuple(_call(call) for call in _named(calls))
        return Step(kind="step", plan=_plan(plan), thought=_thought(value), calls=whole)
    if answer is not None:
        return Step(kind="final", thought=_thought(value), answer=answer)
    return None


def _named(calls: list[Any]) -> list[Mapping[str, Any]]:
    """The calls whose tool is known: a name may still grow until something follows it."""
    named = [call for call in calls if _CALL.reason(call, takes_any=True) is None]
    if named and named[-1] is calls[-1] and list(named[-1])[-1] == "tool_name":
        named.pop()
    return named
