"""Tools and hooks that `Agent(long_term_memory=...)` adds. The modules of long-term memory are imported only if it is used."""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.memory.memory_interface import LongTermMemoryBase
from actgent.sessions.session_handlers import Handler
from actgent.support.attrs_class_repr import FieldRepr
from actgent.tools.tool_adapters import ToolProtocol
from actgent.tools.tool_interface import Tool
from actgent.toolsets.toolset import Toolset

DEFAULT_RECALL_TOKENS = 1_000
"""Maximum tokens of recalled memories in a model call with `recall_before_answer=True`."""


@attrs.frozen(repr=False)
class MemoryParts(FieldRepr):
    """Tools and `on_query` functions of an agent after `long_term_memory=` was applied."""

    tools: Sequence[Tool[Any] | ToolProtocol | Toolset]
    """Tools and toolsets of the agent, memory tools included."""
    on_query_hooks: Sequence[tuple[Handler, bool]] = ()
    """Functions for `on_query`, each with True if it takes the session as its second parameter."""


def long_term_memory_parts(
    tools: Iterable[Tool[Any] | ToolProtocol | Toolset],
    memories: LongTermMemoryBase | None,
    recall_before_answer: bool | int,  # noqa: FBT001 - an option of the agent
) -> MemoryParts:
    """Return an agent's tools with memory tools added, and the hooks that recall memories before each answer.

    The arguments are those of the agent: its tools, `long_term_memory=`, and `recall_before_answer=`. Without memories, nothing is added.

    Raises:
        ConfigurationError: `memories` is not a `LongTermMemory`, or `recall_before_answer` is not True, False or a number of
            tokens.
    """
    recall: object = recall_before_answer
    if not isinstance(recall, int) or recall < 0:
        raise ConfigurationError(
            f"recall_before_answer= must be True, False or a number of tokens, not {recall!r}"
        )
    if memories is None:
        if recall:
            raise ConfigurationError("recall_before_answer= needs long_term_memory=LongTermMemory(...)")
        return MemoryParts(tuple(tools))
    from actgent.memory.longterm.long_term_memory import LongTermMemory  # noqa: PLC0415 - only agents with long_term_memory= load it

    from .memory_tools import RecallBeforeAnswer, memory_tools  # noqa: PLC0415

    if not isinstance(memories, LongTermMemory):
        raise ConfigurationError(
            f"long_term_memory= must be a LongTermMemory, e.g. LongTermMemory('sqlite:///memories.db'), not {memories!r:.200}"
        )
    tools = (*tools, *memory_tools(memories))
    if not recall:
        return MemoryParts(tools)
    budget = DEFAULT_RECALL_TOKENS if recall is True else recall
    return MemoryParts(tools, [(RecallBeforeAnswer(memories, budget).recall, True)])
