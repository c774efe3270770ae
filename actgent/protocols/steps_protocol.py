"""The `steps` protocol: make a plan, take steps with tool calls, give the final answer.

Each answer of the model is one JSON object; its members decide its kind:

    plan             a description of the work; the model continues with the first step
    tool_calls       a step, with `tool_thought`; the results come as the next message
    final_answer     the end of the turn, with `thought`

If an object has both calls and an answer, the calls count: an answer written before the results is a guess.
A plan in the same object is stored too. Plain prose is a final answer, but text that resembles JSON is an error.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any, ClassVar, Literal
from zoneinfo import ZoneInfo

import attrs

from actgent.errors import ConfigurationError, ParseError
from actgent.llm.model_interface import ModelResponse
from actgent.messages import ToolCall
from actgent.structured_output.extract_json import extract, parse_partial_json, remove_thinking

from .answer_content_parsing import answer_text, misspelled_key_reason, parse_encoded_calls
from .partial_answers import PartialAnswer, follow_strings
from .prompt_rendering import WHO
from .protocol_interface import (
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
from .text_tool_calls import CallFormat

DEFAULT_ITERATIONS = 10
PLAN_KEY = "steps.plan"
"""Key of the last plan in the session's state."""
STEP = "step"
"""Name of the stage after the first answer."""

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
_CALL = CallFormat(
    ("tool_name",), 'each of tool_calls needs {"id": ..., "tool_name": "<tool>", "parameters": {...}}'
)
_BROKEN = ("truncated", "broken", "nested")
"""Beginnings of error texts that mean that a text is no valid JSON."""
_NO_OBJECT = "the answer must be one JSON object"
_NO_STEP = 'the answer must be a JSON object with "plan", "tool_calls" or "final_answer"'
_UNRELATED = (None, _NO_OBJECT, _NO_STEP)
"""Error texts that mean that a JSON value is not an answer of this protocol, such as an example in prose."""

Kind = Literal["plan", "step", "final"]


@attrs.frozen(kw_only=True)
class Step:
    """One parsed answer of the model, complete or partial."""

    kind: Kind
    plan: str = ""
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    answer: Any = None
    """Final answer of the model: text or another JSON value; None if the model plans or acts instead."""

    @property
    def is_decided(self) -> bool:
        """True if further chunks of a partial answer cannot change its kind."""
        return bool(self.plan or self.calls) or self.kind == "final"

    @property
    def answer_text(self) -> str:
        """Final answer of the step as text for the user."""
        return self.answer if isinstance(self.answer, str) else json.dumps(self.answer, ensure_ascii=False)


class Steps(Protocol):
    """Protocol in which the model plans, takes steps with tool calls, and gives a final answer.

    Args:
        timezone: IANA name of the time zone in which the prompt states the time.
        final_answer_format: Description of the final answer's format, for the model.
        max_iterations: Maximum number of model calls in a turn.

    Raises:
        ConfigurationError: The time zone is unknown, or `max_iterations` is less than 1.
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
            raise ConfigurationError(f"max_iterations= must be at least 1, not {max_iterations}")
        self.max_iterations = max_iterations
        self.final_answer_format = final_answer_format
        self.set_timezone(timezone)

    def set_timezone(self, name: str) -> None:
        """Set the time zone of the prompt, from the next model call on.

        Raises:
            ConfigurationError: The time zone is unknown.
        """
        self._zone, self.timezone = _parse_timezone(name), name

    def request(self, view: TurnView) -> Request:
        texts = [self._clock(view.message.created_at), _BEGIN if view.stage is None else _GO_ON]
        if view.calls + 1 == self.max_iterations:
            texts[1] = _LAST
        if self.final_answer_format:
            texts.append(f"The final answer: {self.final_answer_format}")
        return Request(tail="\n".join(texts))

    def read(self, answer: ModelResponse, view: TurnView) -> list[Outcome]:
        step = read_step(answer.text)
        kept: list[Outcome] = [UpdateState(_store_plan(step.plan))] if step.plan else []
        if step.kind == "final":
            data = None if isinstance(step.answer, str) else step.answer
            return [*kept, SendReply(text=step.answer_text, data=data)]
        return [*kept, CallTools(step.calls, STEP) if step.calls else Continue(STEP)]

    def partial(self, text: str) -> str | None:
        if "final_answer" not in text:
            return None
        step = parse_partial_step(text)
        return step.answer if step and step.kind == "final" and isinstance(step.answer, str) else None

    def partial_answer(self) -> PartialAnswer:
        return PartialAnswer(self.partial, follow_strings(self.partial))

    def script(self, text: str, call: ToolCall | None = None) -> Sequence[str]:
        return (json.dumps({"final_answer": text}),)

    def with_output(self, output: Any) -> Protocol:
        return StepsOutput(self, output)

    def _clock(self, seconds: float) -> str:
        now = datetime.fromtimestamp(seconds, self._zone)
        return f"It is {now:%A, %Y-%m-%d %H:%M} ({self.timezone})."


class StepsOutput(WithOutput):
    """`output=` for steps: only the final answer must fit the schema, so the provider must not enforce it."""

    def request(self, view: TurnView) -> Request:
        return attrs.evolve(super().request(view), response_format=None)

    def _may_be_value(self, error: ParseError) -> bool:
        return error.reason == _NO_STEP  # an invalid plan or step is not the value


def _parse_timezone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ConfigurationError(f"timezone={name!r} is unknown: use a name like Europe/Oslo") from None


def _store_plan(plan: str) -> Callable[[Mapping[str, Any]], tuple[str, str]]:
    return lambda _: (PLAN_KEY, plan)


# --- complete answers --------------------------------------------------------------------------


def read_step(text: str) -> Step:
    """Parse the text of an answer as a step.

    Raises:
        ParseError: The answer has the wrong format, or holds several different objects.
        EmptyAnswer: The answer has no text.
    """
    shown = answer_text(text)
    if calls := parse_encoded_calls(shown):
        return Step(kind="step", calls=tuple(calls.calls))
    try:
        found = _objects(shown)
    except ParseError as error:
        if _is_prose(shown, error.reason):
            return Step(kind="final", answer=shown.strip())
        raise
    # Final answers after the first step do not count: the model wrote them without the results.
    first, *later = found
    if first.kind == "plan" or not later or (first.kind == "step" and all(s.kind == "final" for s in later)):
        return first
    raise ParseError(f"the answer has {len(found)} different JSON objects: write exactly one", text)


def _objects(text: str) -> list[Step]:
    """Parse all JSON objects in an answer text as steps. Return at least one step, in order and without duplicates.

    Raises:
        ParseError: The text has no step or an invalid one, is truncated, or is invalid JSON.
    """
    found: list[Step] = []
    wrong: list[str] = []
    seen: set[str] = set()

    def collect(value: Any) -> str:
        reason = _reason(value)
        if reason is None and (step := _step(value)) not in found:
            found.append(step)
        if reason not in _UNRELATED:
            wrong.append(reason)
        seen.add(reason or "")
        return reason or ""

    try:
        extract(text, collect)
    except ParseError as error:
        if error.reason not in seen or not (found or wrong):
            raise
    if wrong:  # an answer next to invalid calls is not accepted
        raise ParseError(wrong[0], text)
    return found


def _is_prose(text: str, reason: str) -> bool:
    """Return True if a text is prose and not invalid JSON. `reason` is the error text of its parsing as a step."""
    if reason == _NO_STEP or reason.startswith(_BROKEN) or text.count("```") % 2:
        return False
    return not (text.lstrip().startswith(_JSON_STARTS) or _MEANT_AS_JSON.search(text) or _is_json(text))


def _is_json(text: str) -> bool:
    """Return True if a text is a JSON value but not an object, such as `null`, `5` or `true`."""
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
    if reason := misspelled_key_reason(value, _NAMES):
        return reason
    if calls := value.get("tool_calls"):
        return _calls_reason(calls, value)
    if (answer := value.get("final_answer")) is not None:
        return "final_answer is empty" if isinstance(answer, str) and not answer.strip() else None
    return None if _plan(value.get("plan")) else _nothing_reason(value)


def _nothing_reason(value: Mapping[str, Any]) -> str:
    """Return the error text for an answer object without calls, final answer and plan text."""
    if "tool_calls" in value:
        return "there are no tool calls in tool_calls"
    return "plan must be text, or a list of texts" if "plan" in value else "final_answer is null"


def _calls_reason(calls: Any, value: Mapping[str, Any]) -> str | None:
    """Return an error text if the calls of an answer object are invalid, else None."""
    if not isinstance(calls, list):
        return "tool_calls must be a list"
    return _CALL.calls_reason(calls, ("tool_calls", value, _KEYS), takes_any=True)


def _step(value: dict[str, Any]) -> Step:
    """Convert an answer object that `_reason` has accepted to a step."""
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
    """Convert the plan in an answer to text: a list is joined by newlines. Other values give an empty text."""
    if isinstance(plan, list) and all(isinstance(line, str) and line.strip() for line in plan):
        return "\n".join(plan)
    return plan if isinstance(plan, str) and plan.strip() else ""


def _thought(value: Mapping[str, Any]) -> str:
    thoughts = (value.get(name) for name in ("tool_thought", "thought"))
    return next((thought for thought in thoughts if isinstance(thought, str)), "")


def _call(call: Mapping[str, Any]) -> ToolCall:
    """Convert a call in an answer to a `ToolCall`. Parameters that are not an object are kept as text: the call then fails."""
    written = _CALL.read(call)
    parameters = written.arguments
    if not isinstance(parameters, dict):
        parameters = json.dumps(parameters, ensure_ascii=False)
    return ToolCall(written.name, parameters, provider_id=written.id, native=False)


# --- partial answers --------------------------------------------------------------


def parse_partial_step(text: str) -> Step | None:
    """Parse an incomplete answer as a step, only for display. Return None until the answer shows the kind of the step."""
    shown = remove_thinking(text)
    value = parse_partial_json(shown[max(shown.find("{"), 0) :])
    if not isinstance(value, dict):
        return None
    plan, calls, answer = (value.get(name) for name in ("plan", "tool_calls", "final_answer"))
    if isinstance(plan, str | list) and not calls and (plan or answer is None):
        lines = plan if isinstance(plan, list) else [plan]
        return Step(kind="plan", plan="\n".join(line for line in lines if isinstance(line, str)))
    if isinstance(calls, list) and (calls or answer is None):
        whole = tuple(_call(call) for call in _calls_with_name(calls))
        return Step(kind="step", plan=_plan(plan), thought=_thought(value), calls=whole)
    if answer is not None:
        return Step(kind="final", thought=_thought(value), answer=answer)
    return None


def _calls_with_name(calls: list[Any]) -> list[Mapping[str, Any]]:
    """Return the calls of an incomplete answer whose tool name is complete, for display.

    The name of the last call is complete once another member follows it.
    """
    named = [call for call in calls if _CALL.is_call(call)]
    if named and named[-1] is calls[-1] and list(named[-1])[-1] == "tool_name":
        named.pop()
    return named
