"""Conversations and tool documentation as readable text, for prompts and users."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from actgent.errors import ConfigurationError
from actgent.messages import File, Image, Message, Part, Text, ToolCall, ToolResult, ToolSpec
from actgent.tools.outputs.result_text import canonical_json
from actgent.tools.tool_interface import Tool

_NO_DOCUMENTATION = "No documentation available"


def conversation_text(history: Iterable[Message | Mapping[str, Any]]) -> str:
    """Render a conversation as text: a numbered entry with the speaker's role for each message that has content.

    Further lines of an entry are indented, so that no message can look like another entry.

    Args:
        history: Messages, e.g. `session.history`, or dictionaries with `role` and `content`.

    Raises:
        ConfigurationError: An item is neither a message nor a dictionary.
    """
    lines = ["=== CONVERSATION HISTORY ===", ""]
    entries = [(role, text) for role, text in map(_role_and_text, history) if text]
    for number, (role, text) in enumerate(entries, 1):
        lines += [f"{role.upper()} [{number}]: {_indented(text)}", ""]
    return "\n".join([*lines, "=== END OF HISTORY ==="])


def _role_and_text(message: Message | Mapping[str, Any]) -> tuple[str, str]:
    """Return the speaker's role and the text of a message."""
    if isinstance(message, Message):
        return message.sender.kind, "\n".join(filter(None, map(_part, message.parts)))
    if not isinstance(message, Mapping):
        raise ConfigurationError(
            f'an item of a conversation must be a Message or {{"role", "content"}}, not {message!r:.200}'
        )
    content = message.get("content", "")
    words = content if isinstance(content, str) else canonical_json(content)
    return str(message.get("role", "unknown")), words.strip()


def _part(part: Part) -> str:
    match part:
        case Text():
            return part.text.strip()
        case ToolCall():
            arguments = part.arguments if isinstance(part.arguments, str) else canonical_json(part.arguments)
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
    """Render tools as text: a line with name, parameters and description for each tool. Without tools, the text is empty.

    Args:
        tools: Tools or their specifications, e.g. `agent.tools`; or functions and tools by name. A function is shown with its
            signature and its docstring.
    """
    if isinstance(tools, Mapping):
        lines = [_document(name, tool) for name, tool in tools.items()]
    else:
        lines = [_document(tool.name, tool) for tool in tools]
    return "\n".join(["Available tools:", *lines]) if lines else ""


def _document(name: str, tool: Any) -> str:
    if isinstance(tool, ToolSpec | Tool):
        description = _indented(tool.description.strip()) or _NO_DOCUMENTATION
        return f"- {name}({_parameters(tool.parameters)}): {description}"
    if not callable(tool):
        raise ConfigurationError(f"tool {name!r} must be a function or a Tool, not {tool!r:.200}")
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
