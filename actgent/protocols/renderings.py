"""Readable text of what prompts and people are shown: a conversation, the documentation of tools."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from actgent.errors import ConfigurationError
from actgent.messages import File, Image, Message, Part, Text, ToolCall, ToolResult, ToolSpec
from actgent.tools.base import Tool
from actgent.tools.outputs.results import canonical

_NO_DOCUMENTATION = "No documentation available"


def conversation_text(history: Iterable[Message | Mapping[str, Any]]) -> str:
    """Return a conversation as text, with a numbered entry under its speaker's role for each message that says something.

    Further lines of an entry are indented, so that no message can look like another entry.

    Args:
        history: Messages, e.g. `session.history`, or dictionaries with `role` and `content`.

    Raises:
        ConfigurationError: An item is neither.
    """
    lines = ["=== CONVERSATION HISTORY ===", ""]
    said = [(role, text) for role, text in map(_said, history) if text]
    for number, (role, text) in enumerate(said, 1):
        lines += [f"{role.upper()} [{number}]: {_indented(text)}", ""]
    return "\n".join([*lines, "=== END OF HISTORY ==="])


def _said(message: Message | Mapping[str, Any]) -> tuple[str, str]:
    """The role of a message, and its words."""
    if isinstance(message, Message):
        return message.sender.kind, "\n".join(filter(None, map(_part, message.parts)))
    if not isinstance(message, Mapping):
        raise ConfigurationError(
            f'a conversation has messages or {{"role", "content"}}, not {message!r:.200}'
        )
    content = message.get("content", "")
    words = content if isinstance(content, str) else canonical(content)
    return str(message.get("role", "unknown")), words.strip()


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


def tool_documentation(tools: Iterable[ToolSpec | Tool] | Mapping[str, Any]) -> str:
    """Return a line for each tool: its name, its parameters and its description; empty if there are no tools.

    Args:
        tools: Tools or their specifications, e.g. `agent.tools`; or functions and tools by name. A function is shown with its
            signature and its docstring.
    """
    if isinstance(tools, Mapping):
        lines = [_documented(name, tool) for name, tool in tools.items()]
    else:
        lines = [_documented(tool.name, tool) for tool in tools]
    return "\n".join(["Available tools:", *lines]) if lines else ""


def _documented(name: str, tool: Any) -> str:
    if isinstance(tool, ToolSpec | Tool):
        description = _indented(tool.description.strip()) or _NO_DOCUMENTATION
        return f"- {name}({_parameters(tool.parameters)}): {description}"
    if not callable(tool):
        raise ConfigurationError(f"tool {name!r} is a function or a tool, not {tool!r:.200}")
    return f"- {name}{inspect.signature(tool)}: {_indented(inspect.getdoc(tool) or _NO_DOCUMENTATION)}"


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
