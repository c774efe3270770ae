"""Isolation: results with untrusted text are stored in the session's state, and the model gets references to them.

A reference such as `@r3` or `@r3/amount` may be the value of an argument, or a part of it. The engine puts the stored value
in its place before the call is checked, and keeps the sources for each parameter. The conversation keeps the reference.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from actgent.errors import ParseError
from actgent.messages import Reply, ToolCall, ToolResult, make_result
from actgent.sessions.session_context import SessionContext
from actgent.support.field_repr import FieldRepr
from actgent.support.strict_json import loads
from actgent.support.untrusted_text import has_sources, join_origins, split_readers
from actgent.tools.outputs.result_text import canonical_json, to_text
from actgent.tools.tool_interface import Tool
from actgent.tools.tool_registry import READ_RESULT, ToolRegistry

REFERENCE = re.compile(r"@r([1-9]\d{0,8})(?:/([A-Za-z0-9_]{1,64}))?(?![A-Za-z0-9_/])")
"""Pattern of a reference to a withheld result or to a field of it."""
_KEY = "_withheld/"
_LAST = "_withheld"
_APPROVED = "_approved_values"


@attrs.define(eq=False, repr=False)
class Isolation(FieldRepr):
    """Access to the withheld (untrusted) results of one session, for one batch of its tool calls."""

    context: SessionContext
    registry: ToolRegistry
    """Tools of the agent."""
    sources: dict[str, dict[str, str]] = attrs.field(factory=dict, init=False)
    """Names of the untrusted sources of each argument that got a withheld value, by call id and parameter."""
    is_nested: bool = attrs.field(default=False, init=False)
    """True for nested calls (made inside another tool call), whose results the model does not get."""
    storing: set[str] = attrs.field(factory=set, init=False)
    """Ids of the tool calls that have changed the state of the session."""
    first: int = attrs.field(init=False)
    """Number of the last withheld result before this batch; new results get higher numbers."""

    def __attrs_post_init__(self) -> None:
        self.first = self.context.seen_state.get(_LAST, 0)

    # --- references in calls -----------------------------------------------------------------

    def fill(self, call: ToolCall) -> ToolCall:
        """Return a tool call with withheld values in place of references such as `@r3`, and note their sources in `sources`.

        Unknown references stay. Calls of tools that expect references, and arguments that are not an object,
        are unchanged.
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
        """Return a value with withheld values in place of references at any depth, and the sources of these values.

        A text that is exactly one reference becomes the withheld value itself.
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
        """Return a text with withheld values in place of references such as `@r3`, and the sources of these values."""
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
        kept: Mapping[str, Any] | None = self.context.seen_state.get(f"{_KEY}{number}")
        return kept

    def sources_of(self, call_id: str) -> str:
        """Return the untrusted sources of the withheld values that filled the arguments of a call; empty if there are none."""
        return _join(self.sources.get(call_id, {}).values())

    # --- results -----------------------------------------------------------------------------

    def reference_of(self, index: int) -> str:
        """Return the reference to the result of the call with this index in its batch, such as `@r3`."""
        return f"@r{self.first + index + 1}"

    def withhold(
        self,
        index: int,
        call: ToolCall,
        tool: Tool | None,
        result: ToolResult,
        parts: Sequence[tuple[Any, str]] = (),
    ) -> ToolResult:
        """Return a result for the model without any untrusted text; store the untrusted text under the next reference.

        A tool may store the text in the session's state, where a prompt or another tool shows it, as a goal does with the results
        of its tasks. So the session of such a call keeps the sources.

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
            sources = join_origins(sources, self._readers_of_all())
        if self.is_nested:
            return attrs.evolve(result, via=sources)
        value = "\n".join(filter(None, (result.error and f"Error: {result.error}", result.content)))
        names = () if tool is None else tool.withheld_parts(call.arguments, self.registry)
        self._store(number, value, sources)
        return make_result(
            id=result.id,
            call_id=result.call_id,
            tool_name=result.tool_name,
            content=_announcement(number, call.name, names),
            native=result.native,
            via=sources if call.id in self.storing else "",
        )

    def _withhold_parts(
        self, index: int, call: ToolCall, result: ToolResult, parts: Sequence[tuple[Any, str]], sources: str
    ) -> ToolResult:
        """Store the untrusted parts of a trusted result in the session state, for `extract`.

        The text of the result already has references in place of the parts. Return the result with a notice that explains
        these references.
        """
        value = to_text({str(place): value for place, (value, _) in enumerate(parts, 1)})
        self._store(self.first + index + 1, value, sources)
        reference = self.reference_of(index)
        names = ", ".join(f"{reference}/{place}" for place in range(1, len(parts) + 1))
        notice = (
            f"[{names}: parts of a result of {call.name}, withheld; use extract to ask about {reference}]"
        )
        via = join_origins(result.via, sources) if call.id in self.storing else result.via
        return attrs.evolve(result, content=f"{result.content}\n{notice}", via=via)

    def _store(self, number: int, value: str, sources: str) -> None:
        state = self.context.state
        state.dispatch(
            [
                (f"{_KEY}{number}", {"value": value, "sources": sources}),
                (_LAST, max(number, state.get(_LAST, 0))),
            ]
        )

    def _readers_of_all(self) -> str:
        """Return the owners that may read all withheld results of the session, in the format of labels; empty if all owners may."""
        state = self.context.seen_state
        kept = [value["sources"] for key, value in state.items() if key.startswith(_KEY)]
        return split_readers(_join(kept))[1]

    def note_stored(self, call_id: str) -> None:
        """Note that a tool call has changed the session state, which may show withheld text to the model later."""
        self.storing.add(call_id)

    def is_withheld(self, number: int) -> bool:
        """Return True if the session has a withheld result with this number."""
        return f"{_KEY}{number}" in self.context.seen_state

    # --- approved values ---------------------------------------------------------------------

    def approve(self, call: ToolCall) -> None:
        """Store the filled arguments of an approved call, so that equal values of this tool need no second approval."""
        known = self.context.seen_state.get(_APPROVED, ())
        new = [
            key for name in self.sources.get(call.id, ()) if (key := _approved_key(call, name)) not in known
        ]
        if new:
            self.context.state.dispatch([(_APPROVED, [*known, *new])])

    def unapproved(self, call: ToolCall) -> Mapping[str, str]:
        """Return the sources of those arguments of a call that have withheld values which no approver has seen, by parameter."""
        known = self.context.seen_state.get(_APPROVED, ())
        filled = self.sources.get(call.id, {})
        return {name: sources for name, sources in filled.items() if _approved_key(call, name) not in known}


def filled_reply(context: SessionContext, registry: ToolRegistry, reply: Reply) -> Reply:
    """Return a reply for the user with the withheld values in place of references, and with their sources."""
    isolation = Isolation(context, registry)
    text, sources = isolation.render(reply.text)
    data, more = isolation.fill_value(reply.data)
    sources = join_origins(sources, more)
    if not sources:
        return reply
    context.conversation.add_revealed_sources(sources)
    return attrs.evolve(reply, text=text, data=data, origin=join_origins(reply.origin, sources))


def _with_parts(text: str, reference: str, parts: Sequence[tuple[Any, str]]) -> str:
    """Return the text of a result with the values of its parts in place of the references to them."""

    def value_of(match: re.Match[str]) -> str:
        place = int(match[1])
        return to_text([parts[place - 1][0]])[1:-1] if 0 < place <= len(parts) else match[0]

    return re.sub(rf'"{reference}/(\d+)"', value_of, text)


def _announcement(number: int, tool: str, parts: Sequence[str]) -> str:
    reference = f"@r{number}"
    if tool == "extract":
        names = "".join(f", {reference}/{part}" for part in parts)
        return f"[the answer is withheld as {reference}{names}; use these references as arguments or in the answer]"
    return f"[{reference}: a result of {tool}, withheld; use extract to ask about it]"


def _value_of(withheld: Mapping[str, Any], part: str | None) -> Any:
    """Return a withheld value, or its part of the name `part`; an empty text if the part does not exist.

    A missing part raises no error, because the error would reveal something about the withheld value to the model.
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
    joined = ""
    for text in texts:
        joined = join_origins(joined, text)
    return joined


def _approved_key(call: ToolCall, name: str) -> str:
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
    return canonical_json({"tool": call.name, "parameter": name, "value": arguments.get(name)})
