"""Checks of tool calls against the policy of an agent: may a call run that depends on untrusted text?

A sink is a parameter whose value needs a trusted source. The label of a call is the label of the request that produced
it: the model may have obeyed any text in that request.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from actgent.errors import ToolError
from actgent.labels import Label, Policy, label_of
from actgent.messages import Message, Text, ToolCall
from actgent.sessions.context import SessionContext
from actgent.tools.base import Tool
from actgent.tools.execution import PolicyViolation

_NOT_WORD = re.compile(r"\W+")
_URL_NAME = re.compile(
    r"(?:(?:^|[_.-])(?:url|uri|href|endpoint|webhook|URL|URI|Url|Uri)|(?<=[a-z])(?:URL|URI|Url|Uri))s?$"
)
"""Usual names of parameters with URLs, for schemas without a format."""
_URI_FORMATS = ("uri", "uri-reference", "iri", "iri-reference")
_REMEDY = "use values that the user gave, or ask the user to make this call"


@attrs.frozen(kw_only=True, eq=False)
class PolicyCheck:
    """Checks the calls of one session."""

    policy: Policy
    context: SessionContext
    nested_sources: str = ""
    """Sources of the results that the running outer call has read; empty for calls of the model."""

    def for_nested(self, sources: str) -> "PolicyCheck":
        """Return the check of a nested call, whose outer call has read text of these sources."""
        return attrs.evolve(self, nested_sources=sources)

    def __call__(self, call: ToolCall, tool: Tool, arguments: Mapping[str, Any]) -> PolicyViolation | None:
        """Return the violation of a call that is about to start; None if the call may run.

        Raises:
            ToolError: The call has a violation, and the policy refuses such calls.
        """
        conversation = self.context.conversation
        label = label_of(conversation.origin, conversation.via, self.nested_sources)
        if label.is_trusted:
            return None
        sinks = sinks_of(tool, arguments)
        if sinks is None:
            return None
        if self.policy.check == "arguments":
            said = _trusted_text(conversation.messages)
            sinks = [name for name in sinks if not occurs(arguments[name], said)]
            if not sinks:
                return None
        violation = PolicyViolation(dict.fromkeys(sinks, label), _reason(sinks, label))
        if self.policy.violation == "refuse":
            raise ToolError(f"refused: {violation.reason}. It did not run; {_REMEDY}.")
        return violation


def sinks_of(tool: Tool, arguments: Mapping[str, Any]) -> Sequence[str] | None:
    """Return the given parameters of a call that need trusted values; None if the call needs none.

    Without a declaration, these are all parameters of a tool with an effect, and parameters with URLs of any other tool. A call
    of a tool with sinks that gives no value for them is checked, too: its arguments take their place.
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


def _url_parameters(schema: Mapping[str, Any]) -> Sequence[str]:
    members = schema.get("properties")
    if not isinstance(members, Mapping):
        return ()
    return [name for name, member in members.items() if _URL_NAME.search(name) or _has_url(member)]


def _has_url(schema: object) -> bool:
    """Return True if a schema, or a schema inside of it, has the format of a URL."""
    if isinstance(schema, Mapping):
        return schema.get("format") in _URI_FORMATS or any(map(_has_url, schema.values()))
    return isinstance(schema, list) and any(map(_has_url, schema))


def _reason(sinks: Sequence[str], label: Label) -> str:
    return f"the model read untrusted text of {label} before it chose {', '.join(sinks) or 'this call'}"


def _trusted_text(messages: Sequence[Message]) -> str:
    """Return the words of all trusted user messages and tool results in memory, in a normal form."""
    held = messages[getattr(messages, "missing", 0) :]
    texts = []
    for message in held:
        if message.sender.kind == "user" and not (message.origin or message.via):
            texts += [part.text for part in message.parts if isinstance(part, Text)]
        texts += [each.content for each in message.tool_results if not (each.origin or each.via)]
    return _normal_form(" ".join(texts))


def _normal_form(value: object) -> str:
    return f" {_NOT_WORD.sub(' ', str(value)).strip().lower()} "


def occurs(value: object, text: str) -> bool:
    """Return True if each text and number in a value occurs, as whole words, in a text in normal form."""
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
