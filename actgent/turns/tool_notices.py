"""Notices to a session's model about changed modes, and about added, removed and changed tools.

The tools offered to a session stay unchanged at the beginning of its prompt, so that provider caches stay valid. Later
changes are announced by a notice at the end of the conversation. Notices contain tool names only: descriptions are
untrusted, and reach the model as results of `find_tools`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from actgent.journal.record_types import AgentMessageRecord
from actgent.messages import Message, Sender, Text, ToolSpec
from actgent.modes.system_notices import Notice, NoticeSource
from actgent.sessions.conversation import OfferedTools
from actgent.sessions.session_context import SessionContext, Turn
from actgent.support.field_repr import FieldRepr
from actgent.tools.tool_registry import ToolRegistry

MAX_NAMED_TOOLS = 50
"""Maximum number of tool names in one line of a notice."""


def offer_tools(turn: Turn, registry: ToolRegistry) -> None:
    """Store the tools that a session offers to the model at its first turn.

    Later, notify the model of changed tools.

    The stored list stays equal, so that providers can cache the prompt.
    """
    context = turn.session
    offered = context.conversation.offered
    if offered is None:
        offered = context.conversation.offered = OfferedTools(registry.specs)
    if offered.version != registry.version:
        offered.version = registry.version
        source = ToolNotices(registry, offered.specs)
        add_notices(context, (source,), calls=turn.progress.calls, repairs=turn.progress.repairs)


@attrs.frozen(repr=False)
class ToolNotices(FieldRepr, NoticeSource):
    """Compares the current tools with the tools that a session was offered."""

    name = "toolsets"
    _registry: ToolRegistry
    _offered: tuple[ToolSpec, ...]

    def due(self, state: Mapping[str, Any], last_mark: str | None) -> Sequence[Notice]:
        lines = self._lines()
        mark = (
            hashlib.blake2s("\n".join(lines).encode(), digest_size=8).hexdigest() if lines else "as offered"
        )
        if mark == last_mark or (last_mark is None and not lines):
            return ()
        return [
            Notice(mark, "\n".join(lines) or "All tools that you were offered are available as they were.")
        ]

    def _lines(self) -> list[str]:
        offered = {spec.name: spec for spec in self._offered}
        now = {tool.name: tool.spec for tool in self._registry if not tool.deferred}
        came = [name for name in now if name not in offered and name not in self._registry.mapped]
        gone = [name for name in offered if name not in now]
        changed = [name for name, spec in offered.items() if name in now and now[name] != spec]
        lines = [
            _line("Further tools are available now; find_tools describes them, call_tool runs them: ", came),
            _line("Tools that are not there any more: ", gone),
            _line("Tools that changed; find_tools describes their parameters now: ", changed),
            *(f"Tools of {name} are not available now." for name in self._registry.unavailable),
        ]
        return [line for line in lines if line]


def _line(text: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - MAX_NAMED_TOOLS} more" if len(names) > MAX_NAMED_TOOLS else ""
    return f"{text}{', '.join(names[:MAX_NAMED_TOOLS])}{more}."


def add_notices(
    context: SessionContext, sources: Sequence[NoticeSource], *, calls: int = 0, repairs: int = 0
) -> bool:
    """Append the due notices of all sources to a conversation and its journal. Return True if a notice was due.

    `calls` and `repairs` are counters of the running turn, stored with each record.
    """
    is_due = False
    for source in sources:
        for notice in source.due(context.seen_state, context.conversation.last_notice(source.name)):
            message = _to_message(context, source, notice)
            context.conversation.append(message)
            if context.log is not None:
                context.log.add(AgentMessageRecord(message=message, calls=calls, repairs=repairs))
            is_due = True
    return is_due


def _to_message(context: SessionContext, source: NoticeSource, notice: Notice) -> Message:
    return Message(
        id=f"{source.name}/{notice.mark}/{len(context.conversation.messages)}",
        session_id=context.id,
        sender=Sender(source.name, "system"),
        parts=(Text(notice.text),),
        causation_id=notice.mark,
    )
