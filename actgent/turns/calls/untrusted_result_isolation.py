"""Isolation: results with untrusted text are stored in the session's state, and the model gets references to them.

A result that the model does not get is called withheld. The model may use a reference such as `@r3` or `@r3/amount` as an
argument of a call, or as a part of it. Before the call is checked, the stored value replaces the reference, and the sources of the
value are noted for the parameter. The conversation still contains the reference.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import attrs

from actgent.errors import ParseError
from actgent.messages import Event, Reply, Route, ToolCall, ToolResult, make_result
from actgent.sessions.session_context import SessionContext
from actgent.state.session_state import SHOWN, WITHHELD
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.strict_json import loads
from actgent.support.untrusted_text_delimiters import has_sources, join_origins, split_readers
from actgent.tools.outputs.result_text import canonical_json, to_text
from actgent.tools.tool_interface import Tool
from actgent.tools.tool_registry import READ_RESULT, ToolRegistry

REFERENCE = re.compile(r"@r([1-9]\d{0,8})(?:/([A-Za-z0-9_]{1,64}))?(?![A-Za-z0-9_/])")
"""Pattern of a reference to a withheld result or to a part of it."""
D = TypeVar("D", bound=Reply[Any] | Event | Route)
_LAST = "_withheld"
_APPROVED = "_approved_values"
MISSING = object()
"""Marker for a part that a withheld value does not have."""


@attrs.define(eq=False, repr=False)
class Isolation(FieldRepr):
    """Stores and inserts the withheld results of one session, for one batch of its tool calls.

    A withheld result contains untrusted text. The model gets a reference to it, such as `@r3`, in its place.
    """

    context: SessionContext
    registry: ToolRegistry
    """Tools of the agent."""
    bits: int = 0
    """Maximum information in bits that the model may read from withheld results per turn."""
    turn_id: str = ""
    """Id of the turn that runs the batch; empty outside of a turn."""
    calls: Sequence[ToolCall] = attrs.field(default=(), init=False)
    """Calls of the batch, in the order of the answer. Earlier calls use the budget of `bits` first."""
    sources: dict[str, dict[str, str]] = attrs.field(factory=dict, init=False)
    """Untrusted sources of each argument in which a withheld value replaced a reference, by call id and parameter."""
    is_nested: bool = attrs.field(default=False, init=False)
    """True for nested calls (made inside another tool call), whose results the model does not get."""
    storing: set[str] = attrs.field(factory=set, init=False)
    """Ids of the tool calls that have changed the state of the session."""
    first: int = attrs.field(init=False)
    """Number of the last withheld result before this batch of tool calls. Results of the batch get higher numbers.

    Calls of the batch cannot refer to these higher numbers, because untrusted text can influence in which order they end.
    """

    def __attrs_post_init__(self) -> None:
        self.first = self.context.state_values.get(_LAST, 0)

    def begin(self, calls: Sequence[ToolCall]) -> None:
        """Set the calls of the batch. A call that runs again after a crash or an approval stores its result under the same number."""
        self.calls = calls
        ids = {call.id for call in calls}
        while self.first and ((kept := self._stored(self.first)) is None or kept.get("call", "") in ids):
            self.first -= 1

    # --- references in calls -----------------------------------------------------------------

    def fill(self, call: ToolCall) -> ToolCall:
        """Replace references such as `@r3` in a tool call by the withheld values, and add the untrusted sources of the values.

        Unknown references are not replaced. Calls of tools that expect references, and arguments that are not a JSON object, are
        returned unchanged.
        """
        tool = self.registry.get(call.name)
        if isinstance(call.arguments, str) or (tool is not None and tool.keeps_references):
            return call
        filled = {}
        for name, value in call.arguments.items():
            filled[name], sources = self.fill_value(value)
            if sources:
                self.sources.setdefault(call.id, {})[name] = sources
        return attrs.evolve(call, arguments=filled) if call.id in self.sources else call

    def fill_value(self, value: object) -> tuple[Any, str]:
        """Replace references at any depth of a value by the withheld values. Return the new value and the untrusted sources.

        A text that consists of one reference is replaced by the withheld value itself, which may be of any type.
        """
        if isinstance(value, str):
            whole = REFERENCE.fullmatch(value)
            if whole is None or (kept := self._withheld_result(whole[1])) is None:
                return self.render(value)
            return _value_of(kept, whole[2]), kept["sources"]
        if isinstance(value, list):
            pairs = [self.fill_value(each) for each in value]
            return [each for each, _ in pairs], _join(sources for _, sources in pairs)
        if isinstance(value, Mapping):
            made = {name: self.fill_value(each) for name, each in value.items()}
            return {name: each for name, (each, _) in made.items()}, _join(each for _, each in made.values())
        return value, ""

    def render(self, text: str) -> tuple[str, str]:
        """Replace references such as `@r3` in a text by the withheld values. Return the new text and the untrusted sources."""
        found: list[str] = []

        def value_of(match: re.Match[str]) -> str:
            kept = self._withheld_result(match[1])
            if kept is None:
                return match[0]
            found.append(kept["sources"])
            value = _value_of(kept, match[2])
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

        return (REFERENCE.sub(value_of, text) if "@r" in text else text), _join(found)

    def _withheld_result(self, number: str) -> Mapping[str, Any] | None:
        """Return the withheld result with this number, if it is older than the batch; None otherwise."""
        return self._stored(int(number)) if int(number) <= self.first else None

    def _stored(self, number: int) -> Mapping[str, Any] | None:
        """Return the withheld result with this number from the session state; None if it does not exist."""
        kept: Mapping[str, Any] | None = self.context.state_values.get(f"{WITHHELD}{number}")
        return kept

    def sources_of(self, call_id: str) -> str:
        """Return the untrusted sources of the withheld values that were inserted into the arguments of a call; empty if none were."""
        return _join(self.sources.get(call_id, {}).values())

    # --- results -----------------------------------------------------------------------------

    def reference_of(self, index: int) -> str:
        """Return the reference, such as `@r3`, to the result of the tool call at position `index` of its batch."""
        return f"@r{self.first + index + 1}"

    def withhold(
        self,
        index: int,
        call: ToolCall,
        tool: Tool | None,
        result: ToolResult,
        parts: Sequence[tuple[Any, str]] = (),
    ) -> ToolResult:
        """Store the untrusted text of a tool result under the next reference. Return the result for the model without this text.

        A result without untrusted sources is returned unchanged. If the call has changed the session state, the state may contain
        the text, and a prompt may show it later. Then the returned result has the sources in `via`.

        Args:
            index: Index of the call in its batch.
            call: The call.
            tool: Tool of the call; None if the agent has no such tool.
            result: The result. Its text has references in place of `parts`.
            parts: Values and sources of the untrusted parts of an otherwise trusted result.
        """
        sources = join_origins(join_origins(result.origin, result.via), self.sources_of(call.id))
        number = self.first + index + 1
        if parts:
            whole = attrs.evolve(result, content=_with_parts(result.content, self.reference_of(index), parts))
            more = _join(sources for _, sources in parts)
            if not has_sources(sources):
                return self._withhold_parts(index, call, result, parts, more)
            result, sources = whole, join_origins(sources, more)
        if not has_sources(sources):
            return result
        if call.name == READ_RESULT:  # the stored text has the readers of an earlier result
            sources = join_origins(sources, split_readers(self.context.withheld_sources)[1])
        if self.is_nested:
            return attrs.evolve(result, via=sources)
        value = "\n".join(filter(None, (result.error and f"Error: {result.error}", result.content)))
        names = () if tool is None else tool.withheld_parts(call.arguments, self.registry)
        choices = self._parts_to_show(call) if self.bits else {}
        self._store(number, call, value, sources, self._with_spent(call, choices, sources))
        shown = _shown_parts(number, value, sources, choices)
        return make_result(
            id=result.id,
            call_id=result.call_id,
            tool_name=result.tool_name,
            content=_announcement(number, call.name, names, shown),
            native=result.native,
            via=sources if call.id in self.storing else "",
            started_at=result.started_at,
            ended_at=result.ended_at,
        )

    def _withhold_parts(
        self, index: int, call: ToolCall, result: ToolResult, parts: Sequence[tuple[Any, str]], sources: str
    ) -> ToolResult:
        """Store the untrusted parts of a trusted result in the session state, so that the tool `extract` can read them.

        The text of the result already has references in place of the parts. Return the result with a notice that explains
        these references.
        """
        value = to_text({str(place): value for place, (value, _) in enumerate(parts, 1)})
        self._store(self.first + index + 1, call, value, sources)
        reference = self.reference_of(index)
        names = ", ".join(f"{reference}/{place}" for place in range(1, len(parts) + 1))
        notice = (
            f"[{names}: parts of a result of {call.name}, withheld; use extract to ask about {reference}]"
        )
        via = join_origins(result.via, sources) if call.id in self.storing else result.via
        return attrs.evolve(result, content=f"{result.content}\n{notice}", via=via)

    def _store(
        self, number: int, call: ToolCall, value: str, sources: str, more: Sequence[tuple[str, Any]] = ()
    ) -> None:
        """Store `value` in the session state as the withheld result `number`, together with the state changes in `more`."""
        state = self.context.state
        state.dispatch(
            [
                (f"{WITHHELD}{number}", {"value": value, "sources": sources, "call": call.id}),
                (_LAST, max(number, self.context.state_values.get(_LAST, 0))),
                *more,
            ]
        )

    # --- values that the model may read --------------------------------------------------------

    def _spent_budget(self) -> Mapping[str, Any]:
        """Return the stored use of the turn's budget of `bits`; empty if the model has read no withheld values in this turn."""
        known: Mapping[str, Any] = self.context.state_values.get(SHOWN, {})
        return known if known.get("turn") == self.turn_id else {}

    def _parts_to_show(self, call: ToolCall) -> Mapping[str, Sequence[Any]]:
        """Return the parts of a call's withheld result that the model may read, each with its possible values.

        All values that the model reads in one turn have at most `2 ** Policy.bits` combinations. Parts beyond this budget stay
        withheld. The budget is used in the order of the calls in the answer. The order in which the calls finish would be
        unsafe, because untrusted text can influence it.
        """
        stored = self._spent_budget().get("spent", {})
        spent = math.prod(count for key, count in stored.items() if key != call.id)
        for each in self.calls:
            if each.id in stored and each.id != call.id:
                continue
            tool, shown = self.registry.get(each.name), {}
            for name, values in ({} if tool is None else tool.finite_parts(each.arguments)).items():
                if (spent * len(values) - 1).bit_length() <= self.bits:
                    spent *= len(values)
                    shown[name] = values
            if each.id == call.id:
                return shown
        return {}

    def _with_spent(
        self, call: ToolCall, choices: Mapping[str, Sequence[Any]], sources: str
    ) -> Sequence[tuple[str, Any]]:
        """Return the state change that stores how much of the budget of `bits` a call uses; empty if the call uses nothing.

        A call that runs again after a crash has the same id, so its use is counted once.
        """
        if not choices:
            return ()
        known = self._spent_budget()
        spent = {**known.get("spent", {}), call.id: math.prod(map(len, choices.values()))}
        shown = join_origins(known.get("sources", ""), sources)
        ever = join_origins(self.context.shown_sources, sources)
        return [(SHOWN, {"turn": self.turn_id, "spent": spent, "sources": shown, "ever": ever})]

    @property
    def shown_sources(self) -> str:
        """Untrusted sources of the withheld values that the model has read in this turn; empty if it has read none."""
        sources: str = self._spent_budget().get("sources", "")
        return sources

    def note_stored(self, call_id: str) -> None:
        """Note that a tool call has changed the session state. The state may then contain withheld text, which a prompt may show."""
        self.storing.add(call_id)

    def is_withheld(self, number: int) -> bool:
        """Return True if calls of this batch can refer to a withheld result with this number."""
        return self._withheld_result(str(number)) is not None

    # --- approved values ---------------------------------------------------------------------

    def approve(self, call: ToolCall) -> None:
        """Store that the withheld values in the arguments of a call are approved, so that equal values need no second approval."""
        known = self.context.state_values.get(_APPROVED, ())
        new = [
            key for name in self.sources.get(call.id, ()) if (key := _approved_key(call, name)) not in known
        ]
        if new:
            self.context.state.dispatch([(_APPROVED, [*known, *new])])

    def unapproved(self, call: ToolCall) -> Mapping[str, str]:
        """Return, by parameter, the untrusted sources of the withheld values in a call, except approved values."""
        known = self.context.state_values.get(_APPROVED, ())
        filled = self.sources.get(call.id, {})
        return {name: sources for name, sources in filled.items() if _approved_key(call, name) not in known}


def filled_delivery(context: SessionContext, registry: ToolRegistry, delivery: D, turn_id: str) -> D:
    """Return a delivery of a turn with the untrusted sources of the withheld values on which it depends.

    In a reply, withheld values also replace the references to them.
    """
    isolation = Isolation(context, registry, turn_id=turn_id)
    changes: dict[str, Any] = {}
    if shown := isolation.shown_sources:
        changes["via"] = join_origins(delivery.via, shown)
    if isinstance(delivery, Reply):
        text, sources = isolation.render(delivery.text)
        data, more = isolation.fill_value(delivery.data)
        if sources := join_origins(sources, more):
            context.conversation.add_revealed_sources(sources)
            changes |= {"text": text, "data": data, "origin": join_origins(delivery.origin, sources)}
    return attrs.evolve(delivery, **changes) if changes else delivery


def _with_parts(text: str, reference: str, parts: Sequence[tuple[Any, str]]) -> str:
    """Return a result's text with the references to its parts replaced by the values of the parts."""

    def value_of(match: re.Match[str]) -> str:
        place = int(match[1])
        return to_text([parts[place - 1][0]])[1:-1] if 0 < place <= len(parts) else match[0]

    return re.sub(rf'"{reference}/(\d+)"', value_of, text)


def _announcement(number: int, tool: str, parts: Sequence[str], shown: Sequence[str]) -> str:
    """Return the text that the model gets in place of the withheld result `number` of a tool."""
    reference = f"@r{number}"
    if tool == "extract":
        names = "".join(f", {reference}/{part}" for part in parts)
        known = "".join(f"; {each}" for each in shown)
        return f"[the answer is withheld as {reference}{names}; use these references as arguments or in the answer{known}]"
    return f"[{reference}: a result of {tool}, withheld; use extract to ask about it]"


def _shown_parts(
    number: int, value: str, sources: str, choices: Mapping[str, Sequence[Any]]
) -> Sequence[str]:
    """Return sentences with the parts of a withheld value that the model may read, such as `@r4/urgent is true`.

    `choices` has the possible values of each part. If the value of a part is not among them, or if not all owners may read it,
    the first possible value is shown. Any other text would give the model more information than the budget allows.
    """
    try:
        data = loads(value)
    except ParseError:
        data = MISSING
    is_confidential = bool(split_readers(sources)[1])
    shown = []
    for name, values in choices.items():
        given = data
        if name:
            given = data.get(name, MISSING) if isinstance(data, Mapping) else MISSING
        valid = () if is_confidential else (each for each in values if _is_same_value(each, given))
        chosen = next(iter(valid), values[0])
        text = "missing" if chosen is MISSING else json.dumps(chosen, ensure_ascii=False)
        shown.append(f"@r{number}{f'/{name}' if name else ''} is {text}")
    return shown


def _is_same_value(one: object, other: object) -> bool:
    """Return True if two simple JSON values are equal. Unlike in Python, `true` and `1` differ."""
    if one is MISSING or other is MISSING or isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return one == other


def _value_of(withheld: Mapping[str, Any], part: str | None) -> Any:
    """Return a withheld value, or the part of the value named `part`; an empty text if the part does not exist.

    A missing part raises no error, because the model would see the error and learn something about the withheld value.
    """
    value = withheld["value"]
    try:
        data = loads(value)
    except ParseError:
        data = value
    if part is None:
        return data if isinstance(data, str | int | float) and not isinstance(data, bool) else value
    return data[part] if isinstance(data, Mapping) and part in data else ""


def _join(texts: Any) -> str:
    """Combine texts that each list untrusted sources. Return one text with all sources."""
    joined = ""
    for text in texts:
        joined = join_origins(joined, text)
    return joined


def _approved_key(call: ToolCall, name: str) -> str:
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
    return canonical_json({"tool": call.name, "parameter": name, "value": arguments.get(name)})
