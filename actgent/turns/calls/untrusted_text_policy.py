"""Checks of tool calls against the policy of an agent, before calls run that depend on untrusted or confidential text.

A sink is a parameter whose value needs a trusted source. The audience of a call is the set of readers of its data. The label of
a call is the label of the model request that produced it. The model may have obeyed or repeated any text in the request.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from actgent.information_flow_labels import Label, Policy, label_of, text_of
from actgent.messages import Message, Text, ToolCall
from actgent.sessions.session_context import SessionContext
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.untrusted_text_delimiters import has_sources
from actgent.tools.tool_execution import PolicyViolation
from actgent.tools.tool_interface import Tool, unwrap_tool

from .untrusted_result_isolation import Isolation

_NOT_WORD = re.compile(r"\W+")
_URL_NAME = re.compile(
    r"(?:(?:^|[_.-])(?:url|uri|href|endpoint|webhook|URL|URI|Url|Uri)|(?<=[a-z])(?:URL|URI|Url|Uri))s?$"
)
"""Usual names of parameters with URLs, for schemas without a format."""
_QUOTE = r"""\s"'`<>()\[\]{}"""
"""Characters around a value in a text, as content of a character class."""
_URI_FORMATS = ("uri", "uri-reference", "iri", "iri-reference")
_MAY_HAVE_RUN = ("success", "outcome_unknown")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PolicyCheck(FieldRepr):
    """Check of one session's tool calls against the agent's policy for untrusted text."""

    policy: Policy
    context: SessionContext
    isolation: Isolation | None = None
    """Access to the withheld results of the session; None if the model reads all results."""
    nested_sources: str = ""
    """Untrusted sources that the outer call of nested calls has read; empty for calls of the model."""
    _first_calls: dict[tuple[str, str], str] = attrs.field(factory=dict, init=False)
    """Id of the first call in the answer, by tool name and values of its sinks. Used only with `check="arguments"`."""

    def for_nested(self, sources: str) -> "PolicyCheck":
        """Return a policy check for the nested calls of a tool that has read text of the untrusted sources `sources`.

        A policy with `check="arguments"` is checked like `"context"`, because the conversation has no earlier nested calls.
        """
        return attrs.evolve(self, nested_sources=sources, policy=attrs.evolve(self.policy, check="context"))

    def __call__(self, call: ToolCall, tool: Tool, arguments: Mapping[str, Any]) -> PolicyViolation | None:
        """Return the policy violation of a tool call that is about to start; None if the call may run.

        A call violates the policy if parameters that need trusted values (sinks) may depend on untrusted text. It also violates the
        policy if its data may depend on text that its audience may not read.
        """
        conversation = self.context.conversation
        label = label_of(conversation.origin, conversation.via, self.nested_sources)
        if self.isolation is None and not label.sources and label.readers is None:
            return None
        sinks = sinks_of(tool, arguments)
        is_unchecked = sinks is None and unwrap_tool(tool).reaches_unchecked_agent(arguments, self.context)
        if is_unchecked:
            sinks = list(arguments)
        untrusted = None if sinks is None else self._untrusted_sinks(call, tool, sinks, arguments, label)
        filled = {} if self.isolation is None else self.isolation.sources.get(call.id, {})
        data = label_of(text_of(label), *filled.values()) if filled else label
        excluded = excluded_audience(tool, arguments, data, withheld=filled)
        if is_unchecked and data.readers is not None:
            excluded = list(arguments)
        if untrusted is None and excluded is None:
            return None
        return self._violation(untrusted, None if excluded is None else dict.fromkeys(excluded, data))

    def _untrusted_sinks(
        self, call: ToolCall, tool: Tool, sinks: Sequence[str], arguments: Mapping[str, Any], label: Label
    ) -> Mapping[str, Label] | None:
        """Return the labels of the sinks that may depend on untrusted text, by name; None if the call may run.

        `sinks` has the names of the parameters that need trusted values. If a violating call has no arguments, the result is
        empty.
        """
        labels = {} if self.isolation is None else self._labels_of_values(self.isolation, call, sinks)
        if label.sources and self._depends_on_context(call, tool, sinks, arguments):
            return dict.fromkeys(sinks, label)
        return labels or None

    def _labels_of_values(
        self, isolation: Isolation, call: ToolCall, sinks: Sequence[str]
    ) -> dict[str, Label]:
        """Return the labels of those sinks in which a withheld value replaced a reference, by name. Approved values are omitted."""
        filled = isolation.unapproved(call)
        return {name: label_of(filled[name]) for name in sinks if name in filled}

    def _depends_on_context(
        self, call: ToolCall, tool: Tool, sinks: Sequence[str], arguments: Mapping[str, Any]
    ) -> bool:
        """Return True if a call violates the policy because the conversation contains untrusted text.

        A call of a `pure` tool is no violation if the owner wrote the values of all sinks: the call changes nothing, and sends
        out only these values. With `check="arguments"`, a call is no violation if the values of all sinks occur in trusted text.
        For a tool with the effect `once`, no earlier call may have had the same values.
        """
        if tool.effect == "pure" and sinks:
            texts = [
                text
                for each in _messages_in_memory(self.context.conversation.messages)
                for text in texts_of_owner(each)
            ]
            if all(is_quoted(arguments[name], texts) for name in sinks):
                return False
        if self.policy.check == "context":
            return True
        said = _trusted_text(self.context.conversation.messages)
        if not all(occurs(arguments[name], said) for name in sinks):
            return True
        return tool.effect == "once" and self._may_have_run_before(call, sinks, arguments)

    def _may_have_run_before(
        self, call: ToolCall, sinks: Sequence[str], arguments: Mapping[str, Any]
    ) -> bool:
        """Return True if an earlier call of this tool with the same values in its sinks may have run.

        Untrusted text such as "repeat the last payment" leads to a call whose values all come from the user. Only the
        repetition shows the attack.
        """
        key = call.name, _values_of(sinks, arguments)
        if self._first_calls.setdefault(key, call.id) != call.id:
            return True
        calls: dict[str, ToolCall] = {}
        for message in _messages_in_memory(self.context.conversation.messages):
            calls |= {each.id: each for each in (*message.tool_calls, *message.text_calls)}
            for result in message.tool_results:
                earlier = calls.get(result.call_id)
                if earlier is None or earlier.name != call.name or result.status not in _MAY_HAVE_RUN:
                    continue
                if isinstance(earlier.arguments, Mapping) and _values_of(sinks, earlier.arguments) == key[1]:
                    return True
        return False

    def _violation(
        self, untrusted: Mapping[str, Label] | None, excluded: Mapping[str, Label] | None
    ) -> PolicyViolation:
        """Build the violation of a call.

        Args:
            untrusted: Labels of the sinks that may depend on untrusted text, by name; None if there are none.
            excluded: Labels of the data, by the parameters that name readers without permission; None if there are none.
        """
        reasons, remedies = [], []
        if untrusted is not None:
            names = ", ".join(untrusted) or "this call"
            sources = ", ".join(sorted({each for label in untrusted.values() for each in label.sources}))
            sources = sources or str(self.context.conversation.label)
            reason = f"the model read untrusted text of {sources} before it chose {names}"
            if self.isolation is not None and self.context.conversation.label.is_trusted:
                reason = f"untrusted text of {sources} is the value of {names}"
            reasons.append(reason)
            remedies.append("use values that the user gave")
        if excluded is not None:
            names = ", ".join(excluded) or "this call"
            reason = f"not all readers in {names} may read the data of the conversation"
            if (
                self.policy.violation == "ask"
            ):  # a model must not read the names: a tool may have them from untrusted data
                allowed = {label.reader_names for label in excluded.values()}
                reason = f"{reason} (readers: {', '.join(allowed)})" if allowed else reason
            reasons.append(reason)
            remedies.append("name only readers that may read all of it")
        labels = {**(untrusted or {}), **(excluded or {})}
        reason = ", and ".join(reasons)
        if self.policy.violation == "ask":
            return PolicyViolation(labels, reason)
        remedy = ", and ".join(remedies)
        text = f"refused: {reason}. It did not run; {remedy}, or ask the user to make this call."
        return PolicyViolation(labels, text, is_refused=True)


def sinks_of(tool: Tool, arguments: Mapping[str, Any]) -> Sequence[str] | None:
    """Return the sinks of a tool call, i.e. the parameters that need trusted values; None if it has no sinks.

    Without a declaration, these are all parameters of a tool with an effect, and the URL parameters of any other tool. If a
    call sets none of the declared parameters, all its arguments are checked.
    """
    if tool.sinks is not None:
        declared: Sequence[str] = tool.sinks
    elif tool.effect != "pure":
        return list(arguments)
    else:
        declared = _url_parameters(tool.parameters)
        return [name for name in declared if name in arguments] or None
    if not declared:
        return None
    return [name for name in declared if name in arguments] or list(arguments)


def excluded_audience(
    tool: Tool, arguments: Mapping[str, Any], label: Label, *, withheld: Iterable[str] = ()
) -> Sequence[str] | None:
    """Return the parameters that name readers who may not read the data of a tool call; None if the call may run.

    The data of a call that names no reader may reach any reader. A withheld value is treated as the name of a reader without
    permission, because the result of the check must not reveal the value to the model.

    Args:
        tool: The called tool, which declares the parameters.
        arguments: Arguments of the call, with values in place of references to withheld results.
        label: Label of all text that the data may contain.
        withheld: Parameters with withheld values.
    """
    readers = label.readers
    if readers is None or not tool.audience:
        return None
    named = {name: _names_in(arguments[name]) for name in tool.audience if name in arguments}
    if not any(named.values()):
        return list(named) or list(arguments)
    hidden = frozenset(withheld)
    return [name for name, names in named.items() if name in hidden or not names <= readers] or None


def _names_in(value: object) -> frozenset[str]:
    if value is None or value == "":
        return frozenset()
    if isinstance(value, list | tuple):
        return frozenset(name for each in value for name in _names_in(each))
    return frozenset((str(value),))


def has_sinks(tool: Tool) -> bool:
    """Return True if a tool has parameters that need trusted values, declared or by default."""
    if tool.sinks is not None:
        return bool(tool.sinks)
    return tool.effect != "pure" or bool(_url_parameters(tool.parameters))


def _values_of(sinks: Sequence[str], arguments: Mapping[str, Any]) -> str:
    """Join the values of the sinks (parameters that need trusted values) of a call to one text.

    Values that `occurs` treats as equal give equal texts.
    """
    return repr([_comparable_form(arguments.get(name)) for name in sinks])


def _comparable_form(value: object) -> object:
    if isinstance(value, Mapping):
        return sorted((_normal_form(key), repr(_comparable_form(each))) for key, each in value.items())
    if isinstance(value, list | tuple):
        return [_comparable_form(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return _normal_form("" if value is None else value)


def _url_parameters(schema: Mapping[str, Any]) -> Sequence[str]:
    members = schema.get("properties")
    if not isinstance(members, Mapping):
        return ()
    return [name for name, member in members.items() if _URL_NAME.search(name) or _has_url(member)]


def _has_url(schema: object) -> bool:
    """Return True if a JSON schema allows URLs in a value, at any depth, because a request to a URL can send data out."""
    if isinstance(schema, Mapping):
        return schema.get("format") in _URI_FORMATS or any(map(_has_url, schema.values()))
    return isinstance(schema, list) and any(map(_has_url, schema))


def _messages_in_memory(messages: Sequence[Message]) -> Sequence[Message]:
    """Return only the messages that are in memory. Older messages are not read from the journal."""
    return messages[getattr(messages, "missing", 0) :]


def texts_of_owner(message: Message) -> Sequence[str]:
    """Return the texts of a user's message if the message depends on no untrusted source; empty for other messages."""
    if message.sender.kind != "user" or has_sources(message.origin) or has_sources(message.via):
        return ()
    return [part.text for part in message.parts if isinstance(part, Text)]


def is_quoted(value: object, texts: Iterable[str]) -> bool:
    """Return True if a value occurs literally in one of the texts, between spaces, quotes or brackets.

    A list is quoted if it is not empty and all of its items are quoted. Punctuation may follow the value. A part of a longer
    address does not count, because the rest of the address could carry data.
    """
    if isinstance(value, list):
        texts = tuple(texts)
        return bool(value) and all(is_quoted(each, texts) for each in value)
    if not isinstance(value, str) or not value.strip():
        return False
    found = re.compile(f"(?<![^{_QUOTE}]){re.escape(value)}(?=[.,;:!?]*(?:[{_QUOTE}]|$))")
    return any(found.search(text) for text in texts)


def _trusted_text(messages: Sequence[Message]) -> str:
    """Return the text of all trusted user messages and tool results in memory, in the form that `occurs` compares."""
    texts: list[str] = []
    for message in _messages_in_memory(messages):
        texts += texts_of_owner(message)
        texts += [
            each.content
            for each in message.tool_results
            if not (has_sources(each.origin) or has_sources(each.via))
        ]
    return _normal_form(" ".join(texts))


def _normal_form(value: object) -> str:
    return f" {_NOT_WORD.sub(' ', str(value)).strip().lower()} "


def occurs(value: object, text: str) -> bool:
    """Return True if all texts and numbers in a value occur in `text` as whole words. `text` has the form of `_trusted_text`.

    None, booleans and empty texts always occur.
    """
    if value is None or isinstance(value, bool) or value == "":
        return True
    if isinstance(value, Mapping):
        return all(occurs(each, text) for pair in value.items() for each in pair)
    if isinstance(value, list | tuple):
        return all(occurs(each, text) for each in value)
    if isinstance(value, float) and value.is_integer() and f" {int(value)} " in text:
        return True
    found = _normal_form(value)
    return bool(found.strip()) and found in text
