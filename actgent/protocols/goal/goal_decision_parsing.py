"""Parser of a goal agent's decisions, and the description of their format for the model.

A decision is `{"action", "params", "reasoning"}`. Action names must match exactly, and other keys are ignored.
A decision that does not fit is a `ParseError`, never a guess.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from actgent.errors import ConfigurationError, ParseError
from actgent.errors.text_escaping import quoted
from actgent.messages import ToolCall
from actgent.protocols.text_tool_calls import ARGUMENTS, CallFormat, find_arguments
from actgent.structured_output.answer_type_schemas import schema_check
from actgent.structured_output.extract_json import extract_only
from actgent.support.unknown_name_hints import lists_arguments

from .task_plan import tasks_reason

ACTIONS = ("plan", "execute", "summarize", "evaluate")
FORMS: Mapping[str, str] = {
    "plan": 'plan, params {"steps": ["<what to do first>", "..."], "strategy": "<why this way>"}',
    "execute": 'execute, params {"tool": "<name>", "args": {...}}, or {"calls": [{"tool": "<name>", "args": {...}}, '
    "...]} for calls that do not need each other's results",
    "summarize": 'summarize, params {"summary": "<what was found, in words for the user>"}',
    "evaluate": 'evaluate, params {"achieved": true or false, "feedback": "<why>", "missing_items": ["..."], '
    '"suggestions": ["..."], "answer": "<only if achieved: what the user reads>"}',
}
"""Description of each action for the model."""
_CALL = CallFormat(("tool",), "each call names its tool")
_LIST_KEYS = frozenset(("calls",))
_ENVELOPE = frozenset(("action", "reasoning", "thought", "thoughts", *ARGUMENTS))


@lists_arguments
@attrs.frozen
class CustomAction:
    """An additional action that the model of a goal agent can choose.

    `run(state, params)` returns changes of the session's state: `(key, value)`, a list of pairs, or None. It has no other
    effects. If it raises, the model reads the error and the loop continues.
    """

    name: str
    """Name of the action in the model's answer."""
    description: str
    """Description for the model: when to choose the action."""
    run: Callable[[Any, Any], Any]
    """Function of the session's state and the params, both dicts; it returns changes of the state."""
    params: Mapping[str, Any] = attrs.field(factory=dict)
    """JSON Schema or template of the params; an empty one accepts any params."""

    def __attrs_post_init__(self) -> None:
        if not self.name.strip() or self.name.strip().casefold() in ACTIONS:
            taken = ", ".join(ACTIONS)
            raise ConfigurationError(f"custom action {self.name!r}: the name must not be one of {taken}")
        schema_check(self.params)


@attrs.frozen
class Decision:
    """Decision of a goal agent's model: the chosen action with its parameters."""

    action: str
    """Name of the chosen action."""
    params: Mapping[str, Any]
    """Parameters of the action; empty if the next request must ask the model for them."""
    calls: Sequence[ToolCall] = ()
    """Tool calls of an `execute` action; empty for other actions."""


@attrs.frozen
class DecisionReader:
    """Parser of decisions with built-in and custom actions."""

    custom: Mapping[str, CustomAction]
    """Custom actions that the model may choose, by name."""
    with_tasks: bool = False
    """True if a plan may be a list of tasks."""

    def read(self, text: str, *, needs_params: bool) -> Decision:
        """Parse the decision in an answer text. If `needs_params` is False, some actions may omit their parameters.

        Raises:
            ParseError: The text has no decision or several, or the parameters do not fit the action.
        """
        value = extract_only(text, lambda value: self._reason(value, needs_params=needs_params))
        action, params = value["action"], _params(value)
        return Decision(action, params, _calls(params) if action == "execute" else ())

    def _reason(self, value: Any, *, needs_params: bool) -> str | None:
        if not isinstance(value, dict) or not isinstance(value.get("action"), str):
            return 'the answer must be a JSON object with "action", "params" and "reasoning"'
        action, params = value["action"], _params(value)
        if action not in ACTIONS and action not in self.custom:
            return f"unknown action {quoted(action)} (known: {', '.join([*ACTIONS, *self.custom])})"
        if not isinstance(params, dict):
            return f"the params of {action} must be one object"
        if action in self.custom and not params and (stray := value.keys() - _ENVELOPE):
            return f"{action}: put {quoted(min(stray))} into its params"
        if not params and not needs_params and action in _ASKED_SEPARATELY:
            return None
        reason = self._params_reason(action, params, value)
        return reason and f"{action}: {reason}"

    def _params_reason(
        self, action: str, params: Mapping[str, Any], decision: Mapping[str, Any]
    ) -> str | None:
        if action == "plan" and self.with_tasks and "tasks" in params:
            return tasks_reason(params["tasks"])
        if own := self.custom.get(action):
            return schema_check(own.params)(params) if own.params else None
        if action == "execute":
            return _execute(params, decision)
        return _PARAMS[action](params)


def _params(value: Mapping[str, Any]) -> Any:
    """Return the parameters in a decision's object, which models write under several keys.

    Return an empty object if there are none, and None if two keys have different values.
    """
    try:
        return find_arguments(value, value["action"])
    except ParseError:
        return None


# --- the params of each action ---------------------------------------------------------------

_ASKED_SEPARATELY = ("plan", "summarize", "evaluate")
"""Actions whose decision may omit the parameters. A separate model call then asks for them."""


def _plan(params: Mapping[str, Any]) -> str | None:
    steps = params.get("steps")
    return None if steps and _are_texts(steps) else "steps must be a list of at least one text"


def _execute(params: Mapping[str, Any], decision: Mapping[str, Any]) -> str | None:
    """Return an error text if the calls in `params` are invalid or an argument is outside of the calls, else None."""
    calls = _requested_calls(params)
    if not isinstance(calls, list) or not calls:
        return 'give {"tool": "<name>", "args": {...}}, or a list of such "calls"'
    envelopes = [("the params", decision, _ENVELOPE)]
    if calls is params.get("calls"):
        envelopes.insert(0, ("calls", params, _LIST_KEYS))
    return _CALL.calls_reason(calls, *envelopes)


def _summarize(params: Mapping[str, Any]) -> str | None:
    return None if _is_text(params.get("summary")) else "summary must be text"


def _evaluate(params: Mapping[str, Any]) -> str | None:
    if not isinstance(params.get("achieved"), bool):
        return "achieved must be true or false"
    for name in ("missing_items", "suggestions"):
        if not _are_texts(params.get(name) or []):
            return f"{name} must be a list of texts"
    for name in ("feedback", "answer"):
        if not isinstance(params.get(name) or "", str):
            return f"{name} must be text"
    if params["achieved"] and params.get("missing_items"):
        return "nothing can be missing from a goal that is achieved"
    return None


_PARAMS: Mapping[str, Callable[[Mapping[str, Any]], str | None]] = {
    "plan": _plan,
    "summarize": _summarize,
    "evaluate": _evaluate,
}


def _requested_calls(params: Mapping[str, Any]) -> Any:
    return params["calls"] if "calls" in params and "tool" not in params else [params]


def _calls(params: Mapping[str, Any]) -> list[ToolCall]:
    written = map(_CALL.read, _requested_calls(params))
    return [ToolCall(call.name, call.arguments, native=False) for call in written]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_texts(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and all(map(_is_text, values))
