"""A session as it was at any of its records, made again without model, tools or handlers."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.journal.records import WIRE, Changed, Record, Said
from actgent.memory.short_term import ShortTermMemory
from actgent.messages import Message, Sender, Usage

from .context import SessionContext
from .conversation import SessionConversation
from .restore import owner_of, restore


@attrs.frozen(kw_only=True)
class Rebuilt:
    """A session after one of its records."""

    step: int
    """The number of that record, from 1."""
    owner: Sender
    state: Mapping[str, Any]
    history: tuple[Message, ...]
    usage: Usage
    waiting: tuple[Message, ...]
    """Accepted and not ended."""

    @property
    def digest(self) -> str:
        """The same for the same history and state, in the running session and in any later replay."""
        return digest_of(self.history, self.state)


async def rebuild(records: Sequence[Record], *, to: int | None = None) -> Rebuilt:
    """The session after its record `to`, or after the last, by the code that recovers it after a crash.

    Raises:
        ConfigurationError: there is no such record.
    """
    step = len(records) if to is None else to
    if not 1 <= step <= len(records):
        raise ConfigurationError(f"there is no step {step}: the session's records are 1 to {len(records)}")
    if owner_of(records[:1]) is None:
        raise ConfigurationError("these are no records of a session: they do not begin with its opening")
    context = SessionContext("", Sender("nobody"), SessionConversation(ShortTermMemory().open_view()))
    restored = await restore(records[:step], context)
    return Rebuilt(
        step=step,
        owner=restored.owner,
        state=dict(context.seen_state),
        history=tuple(context.conversation.messages),
        usage=context.conversation.usage,
        waiting=restored.waiting,
    )


def digest_of(history: Iterable[Message], state: Mapping[str, Any]) -> str:
    """32 hexadecimal digits that stand for a session's history and state.

    Raises:
        NotSerializable: the state holds what is no plain data.
    """
    said = [Said(message=message) for message in history]
    changes = [Changed(changes={key: state[key]}) for key in sorted(state)]
    return hashlib.blake2b(WIRE.encode([*said, *changes], Record), digest_size=16).hexdigest()
