"""A session's conversation: its messages, what a model is shown of them, and the ids of its calls."""

from collections.abc import Iterable

import attrs

from actgent.memory.base import ModelView
from actgent.messages import NO_USAGE, Message, ToolCall, ToolSpec, Usage, new_id


@attrs.define(eq=False)
class OfferedTools:
    """Which tools a session's model is offered in every request, so that its prompt's beginning stays as it is."""

    specs: tuple[ToolSpec, ...]
    version: int = -1
    """That of the agent's tools when the model was last told of changes."""


@attrs.define(eq=False)
class SessionConversation:
    """All messages of a session, in their order, and what they came to."""

    view: ModelView
    """What a model is shown of them."""
    messages: list[Message] = attrs.field(factory=list)
    usage: Usage = NO_USAGE
    system: str | None = None
    """The session's system prompt; None is the agent's."""
    open_calls: tuple[ToolCall, ...] = ()
    """Calls of the last answer that have no result yet."""
    offered: OfferedTools | None = None
    """None: the agent's tools never change."""
    _call_ids: set[str] | None = None
    _notices: dict[str, str] | None = None
    """The marks of the last notices, by their sources."""
    _history: tuple[Message, ...] = ()
    """The messages when they were last asked for as a whole."""

    def append(self, message: Message, *, answered: bool = False) -> None:
        """Add the next message; `answered`: its turn has had its answer, so it is not to be noticed."""
        self.messages.append(message)
        self.view.add(message, answered=answered)
        if not answered and message.is_note:
            self._notices = {**(self._notices or {}), message.sender.name: message.causation_id or ""}

    @property
    def history(self) -> tuple[Message, ...]:
        """The messages as a whole; copied once for all who ask before they grow."""
        if len(self._history) != len(self.messages):
            self._history = tuple(self.messages)
        return self._history

    @property
    def last_message(self) -> Message | None:
        """The last message, ignoring notices."""
        for message in reversed(self.messages):
            if not message.is_note:
                return message
        return None

    def last_notice(self, source: str) -> str | None:
        """Return the mark of the last notice of a source; None if there is none."""
        return None if self._notices is None else self._notices.get(source)

    def reserve_call_ids(self, ids: Iterable[str]) -> None:
        """Mark ids of calls as taken."""
        for call_id in ids:
            if self._call_ids is None:
                self._call_ids = set()
            self._call_ids.add(call_id)

    def assign_call_id(self, call: ToolCall, otherwise: str = "") -> ToolCall:
        """Give a call an id that no other call of the session has: its own if it is one, or else `otherwise`."""
        if self._call_ids is None:
            self._call_ids = set()
        theirs = call.provider_id if call.provider_id is not None else call.id
        ours = theirs if theirs and theirs not in self._call_ids else otherwise or new_id()
        self._call_ids.add(ours)
        if ours == call.id:
            return call
        return ToolCall(
            call.name,
            call.arguments,
            ours,
            provider_id=call.provider_id,
            native=call.native,
            mapped=call.mapped,
        )
