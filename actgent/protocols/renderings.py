"""Readable text of what prompts and people are shown: a conversation, the documentation of tools."""

from collections.abc import Iterable, Mapping
from typing import Any

from actgent.messages import File, Image, Message, Part, Text, ToolCall, ToolResult, ToolSpec
from actgent.tools.outputs.results import canonical

_NO_DOCUMENTATION = "No documentation available"


def conversation_text(messages: Iterable[Message]) -> str:
    """A conversation with a numbered entry for each message that says something, each under its speaker's role.

    Further lines of an entry are indented, so that nothing that is said can look like another entry.
    """
    lines = ["=== CONVERSATION HISTORY ===", ""]
    said = [(message, text) for message in messages if (text := _said(message))]
    for number, (message, text) in enumerate(said, 1):
        lines += [f"{message.sender.kind.upper()} [{number}]: {_indented(text)}", ""]
    return "\n".join([*lines, "=== END OF HISTORY ==="])


def _said(message: Message) -> str:
    return "\n".join(filter(None, map(_part, message.parts)))


def _part(part: Part) -> str:
    match part:
        case Text():
            return part.text.strip()
        case ToolCall():
            arguments = part.arguments if isinstance(part.arguments, str) else canonical(part.arguments)
            return f"calls {part.name} {arguments}"
        case ToolResult():
            return f"{part.tool_name}: {part.text}"
        case File():
            return f"({part.name}, {part.media_type})"
        case Image():
            return f"(an image, {part.media_type})"
    return ""


def _indented(text: str) -> str:
    return "\n  ".join(text.splitlines())


def tool_documentation(specs: Iterable[ToolSpec]) -> str:
    """A line for each tool, its parameters and what it does; empty where there are none."""
    lines = [f"- {spec.name}({_parameters(spec.parameters)}): {_description(spec)}" for spec in specs]
    return "\n".join(["Available tools:", *lines]) if lines else ""


def _parameters(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    members = schema.get("properties", {})
    return ", ".join(
        _parameter(name, member, optional=name not in required) for name, member in members.items()
    )


def _parameter(name: str, schema: Any, *, optional: bool) -> str:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    words = " or ".join(kind) if isinstance(kind, list) else kind
    return f"{name}{'?' if optional else ''}{f': {words}' if words else ''}"


def _description(spec: ToolSpec) -> str:
    return _indented(spec.description.strip()) or _NO_DOCUMENTATION
