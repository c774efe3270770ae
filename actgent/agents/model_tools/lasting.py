"""What an agent gets by `memories=`; without it nothing of that is loaded."""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.memory.lasting import LastingMemories
from actgent.sessions.handlers import Handler
from actgent.tools.adapters import ToolShape
from actgent.tools.base import Tool
from actgent.toolsets.toolset import Toolset

BEFORE_ANSWER = 1_000
"""Tokens of what is recalled before an answer, where no other number is given."""


@attrs.frozen
class Lasting:
    """An agent's tools with those of its memories, and what else they bring."""

    tools: Sequence[Tool[Any] | ToolShape | Toolset]
    queries: Sequence[tuple[Handler, bool]] = ()
    """As `Hooks` has them."""


def lasting_of(
    tools: Iterable[Tool[Any] | ToolShape | Toolset],
    memories: LastingMemories | None,
    recall_before_answer: bool | int,  # noqa: FBT001 - an option of the agent
) -> Lasting:
    """The tools of an agent, and what the arguments `memories=` and `recall_before_answer=` bring besides.

    Raises:
        ConfigurationError: one of them is wrong.
    """
    recall: object = recall_before_answer
    if not isinstance(recall, int) or recall < 0:
        raise ConfigurationError(
            f"recall_before_answer= is True, False or a number of tokens, not {recall!r}"
        )
    if memories is None:
        if recall:
            raise ConfigurationError("recall_before_answer= needs memories=Memories(...)")
        return Lasting(tuple(tools))
    from actgent.memory.longterm import Memories  # noqa: PLC0415 - nobody else pays for it

    from .memory_tools import RecallBeforeAnswer, memory_tools  # noqa: PLC0415

    if not isinstance(memories, Memories):
        raise ConfigurationError(
            f"memories= takes Memories(...), e.g. Memories('sqlite:///memories.db'), not {memories!r:.200}"
        )
    tools = (*tools, *memory_tools(memories))
    if not recall:
        return Lasting(tools)
    budget = BEFORE_ANSWER if recall is True else recall
    return Lasting(tools, [(RecallBeforeAnswer(memories, budget).recall, True)])
