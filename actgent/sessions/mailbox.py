"""Messages of a session that have no outcome yet, and the ids of accepted messages.

A `QueuedMessage` exists from the call that sends a message until the message's turn starts, or until the message
ends without a turn. Its states:

    sending   waits for room in the inbox, then for the journal; if rejected or cancelled, nothing of the message
        remains
    accepted  waits for its turn; a second message with the same id joins it

Each session has one table of queued messages by message id. An entry is removed once: when the turn starts, when
the message ends without a turn, or when it is rejected.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextvars import Context
from typing import Any

import attrs
import trio

from actgent.actors.inbox import Place
from actgent.control.budget import Funding
from actgent.journal.records import NOTHING, FailureRecord, TurnOptions
from actgent.messages import Message, OnBusy

from .pending.turn_checkpoint import TurnCheckpoint
from .pending.turn_future import Outcome, TurnFuture
from .session_log import SessionLog


@attrs.define(eq=False)
class MessageEnding:
    """The end of queued messages without a turn."""

    recorded: trio.Event = attrs.field(factory=trio.Event)
    """Event that is set when the failure of the messages is recorded, or cannot be recorded."""
    ended: trio.Event = attrs.field(factory=trio.Event)
    """Event that is set when handlers and callers of the messages were notified."""
    error: Exception | None = None
    """Error of the messages, or the journal's error if the failure could not be recorded; None before `recorded`."""


class QueuedMessage:
    """A sent message whose turn has not started."""

    # Not made by attrs: a turn that starts at once needs none of the defaults, and setting them costs it half a percent.

    baggage: Mapping[str, Any] = NOTHING
    """Stored context variables, if the message was loaded from the journal; empty for messages of this process."""
    options: TurnOptions | None = None
    """Stored model options of the message's turn, if the message was loaded from the journal; None without options."""
    place: Place[Message] | None = None
    """Reserved or occupied entry in the agent's inbox; None before the reservation."""
    log: SessionLog | None = None
    """Session log that may have recorded the message; None without a journal."""
    is_in: bool = False
    """True if the message was accepted."""
    settled: trio.Event | None = None
    """Event that is set when the message is accepted or rejected; None if no caller waits for that."""
    joined_futures: tuple[TurnFuture, ...] = ()
    """Futures of callers that sent a message with the same id."""
    ending: MessageEnding | None = None
    """End of the message without a turn; None unless the message is being ended."""
    failed: FailureRecord | None = None
    """Recorded failure of the message that its handlers may not have received yet; None if the message has not
    failed.
    """

    def __init__(
        self,
        message: Message,
        variables: Context,
        future: TurnFuture | None = None,
        funding: Funding | None = None,
    ) -> None:
        self.message = message
        self.variables = variables
        """Context variables of the sender, in which the turn runs."""
        self.future = future
        """Future of the caller that waits for the outcome; None if no caller waits."""
        self.funding = funding

    def __repr__(self) -> str:
        return f"<QueuedMessage of {self.message.id!r}, {'in' if self.is_in else 'on its way'}>"

    async def wait_settled(self) -> None:
        """Wait until another task has accepted or rejected this message."""
        if self.settled is None:
            self.settled = trio.Event()
        await self.settled.wait()

    def mark_done(self) -> None:
        """Mark the message as accepted or rejected, and wake the tasks in `wait_settled`."""
        if self.settled is not None:
            self.settled.set()


ACCEPTED_IDS = 10_000
"""Maximum number of accepted message ids that a session remembers, to detect repetitions."""
UNWANTED_IDS = 100
"""Maximum number of cancellations that a session remembers for messages that have not arrived."""


@attrs.define(eq=False)
class SessionMailbox:
    """Messages of a session without an outcome, and the ids of accepted messages."""

    on_busy: OnBusy = "queue"
    """Default handling of messages that arrive during a turn."""
    is_transient: bool = False
    """True if the session closes after its last pending message."""
    has_moved: bool = False
    """True if another process owns the session, or is about to own it."""
    is_left: bool = False
    """True if the agent is stopping and its next start resumes the session. Outcomes in this process are then not
    final.
    """
    is_forwarded: bool = False
    """True if queued messages were passed to another process, so this process must not close the session."""
    pending: int = 0
    """Number of outside messages that are being sent, queued or processed."""
    pins: int = 0
    """Number of callers that currently prevent the eviction of the session from memory."""
    acceptances: dict[str, QueuedMessage] | None = None
    """Queued messages by message id; None if there are none."""
    outcomes: dict[str, Outcome] | None = None
    """Outcomes of ended messages that callers may send again, by message id; None if there are none."""
    unwritten_turn: TurnCheckpoint | None = None
    """Checkpoint of the last turn, if the journal failed during the turn. The turn resumes when its message is sent again."""
    is_only_read: bool = False
    """True if only readers of the journal may receive the next answer."""
    unwanted: dict[str, str] | None = None
    """Cancellation reasons of messages that have not arrived, by message id; None if there are none."""
    _accepted: dict[str, None] | None = None
    _idle: trio.lowlevel.ParkingLot | None = None

    # --- ids that were given by callers ---------------------------------------------------

    def has_accepted(self, message_id: str) -> bool:
        """Return True if a message with this id was accepted before, so that another one is a repetition.

        Only the newest ids are remembered.
        """
        return self._accepted is not None and message_id in self._accepted

    @property
    def accepted_ids(self) -> tuple[str, ...]:
        """Remembered ids of accepted messages, oldest first."""
        return tuple(self._accepted or ())

    def restore_accepted_ids(self, ids: Iterable[str]) -> None:
        """Set the remembered ids of accepted messages, after the session was loaded."""
        self._accepted = dict.fromkeys(ids) or None

    def add_accepted_id(self, message_id: str) -> None:
        """Remember the id of an accepted message, so that a second message with this id is a repetition."""
        if self._accepted is None:
            self._accepted = {}
        self._accepted[message_id] = None
        if len(self._accepted) > ACCEPTED_IDS:
            del self._accepted[next(iter(self._accepted))]

    def release_accepted_id(self, message_id: str) -> None:
        """Forget an accepted id. A message with this id can then be accepted again, e.g. after a failed write."""
        if self._accepted is not None:
            self._accepted.pop(message_id, None)

    # --- messages that were stopped before they were in -----------------------------------

    def cancel_on_arrival(self, message_id: str, reason: str) -> bool:
        """Cancel a message by its id before it arrives, while it is being sent, or while it is queued.

        An ended message is ignored. Return True if the message was not cancelled before. Old cancellations
        are dropped.
        """
        has_ended = self.has_accepted(message_id) and self.find(message_id) is None
        if has_ended or message_id in (self.unwanted or ()):
            return False
        if self.unwanted is None:
            self.unwanted = {}
        self.unwanted[message_id] = reason
        if len(self.unwanted) > UNWANTED_IDS:
            del self.unwanted[next(iter(self.unwanted))]
        return True

    def cancellation_reason(self, message_id: str) -> str | None:
        """Return the reason why the message was cancelled; None if it was not cancelled."""
        return None if self.unwanted is None else self.unwanted.get(message_id)

    def drop_cancellation(self, message_id: str) -> None:
        """Forget the cancellation of a message that has ended."""
        if self.unwanted is not None:
            self.unwanted.pop(message_id, None)
            self.unwanted = self.unwanted or None

    # --- messages -------------------------------------------------------------------------

    def expect(self, acceptance: QueuedMessage) -> None:
        """Add a message that is being sent, and count it as pending."""
        self.pending += 1
        self.restore_message(acceptance)

    def restore_message(self, acceptance: QueuedMessage) -> None:
        """Add a queued message that is already counted as pending or will be counted later, e.g. after loading the session."""
        if self.acceptances is None:
            self.acceptances = {}
        self.acceptances[acceptance.message.id] = acceptance

    def forget(self, message_id: str, *, is_refused: bool) -> None:
        """Remove a queued message that ended before the restart.

        If it was rejected (`is_refused`), its id can be used again.
        """
        if self.acceptances is not None:
            self.acceptances.pop(message_id, None)
            self.acceptances = self.acceptances or None
        if is_refused:
            self.release_accepted_id(message_id)

    def find(self, message_id: str) -> QueuedMessage | None:
        """Return the queued message with this id; None if there is none."""
        return None if self.acceptances is None else self.acceptances.get(message_id)

    @property
    def waiting(self) -> Iterator[Message]:
        """Accepted messages that wait for their turn, in the order in which they were sent."""
        return (each.message for each in (self.acceptances or {}).values() if each.is_in)

    def refuse(self, acceptance: QueuedMessage) -> None:
        """Remove a rejected message, and allow its id again."""
        self.take(acceptance.message)
        self.mark_done()
        acceptance.mark_done()

    def take(self, message: Message) -> QueuedMessage:
        """Remove and return the queue entry of a message whose turn starts, or that ends without a turn."""
        assert self.acceptances is not None  # noqa: S101 - each message in the inbox has an acceptance
        acceptance = self.acceptances.pop(message.id)
        if not self.acceptances:
            self.acceptances = None
        return acceptance

    @property
    def should_close(self) -> bool:
        """True if the session served a single request and has no pending message, so that it should be closed.

        A session whose messages were passed to another process stays open.
        """
        return self.is_transient and not (self.pending or self.is_forwarded)

    def mark_done(self, count: int = 1) -> None:
        """Subtract ended messages from the number of pending messages, and wake the tasks in `park` at zero."""
        self.pending -= count
        if not self.pending and self._idle is not None:
            self._idle.unpark_all()

    # --- idleness -------------------------------------------------------------------------

    def tell_idle(self) -> None:
        """Wake the tasks in `park`, because the session is idle or cannot continue."""
        if self._idle is not None:
            self._idle.unpark_all()

    async def park(self) -> None:
        """Wait until `tell_idle` is called."""
        if self._idle is None:
            self._idle = trio.lowlevel.ParkingLot()
        await self._idle.park()

    def drop_idle_waiters(self) -> None:
        """Drop the wait queue of `park` to free its memory. No task may be waiting."""
        self._idle = None
