"""Description of the modes in the system prompt. It lists all modes, so it is the same in each mode."""

from collections.abc import Iterable, Sequence

from actgent.tools.tool_interface import Tool

from .mode import Mode, all_tools
from .mode_enforcement import SET_MODE, Modes

_INTRODUCTION = (
    "You work in modes. A system message in the conversation says so when the mode changes; in the beginning it is "
    "{initial}. You see all tools at all times, but a call that the current mode does not allow is refused. Ask for "
    "another mode, or switch with {set_mode} where you may."
)


def prompt_of(modes: Modes, tools: Iterable[Tool]) -> str:
    """Return the part of the system prompt that describes the modes, their tools, and the modes that the model may switch to."""
    known = list(tools)
    lines = [
        _INTRODUCTION.format(initial=modes.initial, set_mode=SET_MODE),
        f"Tools of every mode: {_join(tool.name for tool in known if _is_universal(modes, tool))}.",
        *(_line(modes, mode, known) for mode in modes),
    ]
    if able := [mode.name for mode in modes if "agent" in mode.who or mode.name in modes.agent_may]:
        lines.append(f"You may switch to {_join(able)} yourself.")
    return "\n".join(lines)


def _line(modes: Modes, mode: Mode, tools: Sequence[Tool]) -> str:
    heading = f"- {mode.name}: {mode.prompt}" if mode.prompt else f"- {mode.name}"
    return f"{heading} {_describe_tools(modes, mode, tools)}"


def _describe_tools(modes: Modes, mode: Mode, tools: Sequence[Tool]) -> str:
    if mode.tools is all_tools:
        return "(all tools)"
    if callable(mode.tools):
        return "(further tools by a rule)"
    names = [tool.name for tool in tools if not _is_universal(modes, tool) and modes.allows(mode.name, tool)]
    return f"(further tools: {_join(names)})"


def _is_universal(modes: Modes, tool: Tool) -> bool:
    """Return True if every mode allows the tool, so that the prompt lists it only once."""
    return tool.name in modes.universal or tool.in_every_mode


def _join(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
