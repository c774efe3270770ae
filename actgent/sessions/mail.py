"""A session's messages on their way in: counted, known by their ids, and waited for.

The acceptance of a message: all that is known of it, from when it is sent until its turn begins or it ends without one.

    on its way   it waits for a place in the inbox, then the journal writes it; refused or cancelled, nothing of it is left
    in           it waits for its turn; whoever repeats its id is told that it is accepted

A session has each of its acceptances in one table, by the ids of the messages, and takes it out once: as the turn begins,
as the message ends without one, or as it is refused.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextvars import Context
from typing import Any

import attrs
import trio

from actgent.actors.inbox import Place
from actgent.control.budget import Funding
from actgent.journal.records import NOTHING, Failed, TurnOptions
from actgent.messages import Message, OnBusy

from .session_log import SessionLog
from .waiting.turn_checkpoint import TurnCheckpoint
from .waiting.turn_future import Outcome, TurnFuture


class Acceptance:
    """A message that was sent and has not had its turn."""

    # Not made by attrs: a turn that starts at once needs none of the defaults, and setting them costs it half a percent.

    baggage: Mapping[str, Any] = NOTHING
    """Its variables as the journal has them, if it came from there."""
    options: TurnOptions | None = None
    """Options of its turn, if it came before a restart."""
    place: Place[Message] | None = None
    """Its place in the inbox, as soon as it has one."""
    log: SessionLog | None = None
    """The session's end of the journal that may have it."""
    is_in: bool = False
    """True if it is accepted."""
    settled: trio.Event | None = None
    """Made by a caller that repeats its id, and waits until it is in or refused."""
    guests: tuple[TurnFuture, ...] = ()
    """Callers that repeated its id, and wait for the same."""
    ending: trio.Event | None = None
    """Set when it has ended without a turn; None while nobody ends it. It is out of the inbox from then on."""
    failed: Failed | None = None
    """Its outcome, if the journal has it as failed and handlers may not have the failure."""

    def __init__(
        self,
        message: Message,
        variables: Context,
        future: TurnFuture | None = None,
        funding: Funding | None = None,
    ) -> None:
        self.message = message
        self.variables = variables
        """The context variables of its sender, in which its turn runs."""
        self.future = future
        """The caller that waits for what comes of it."""
        self.funding = funding

    def __repr__(self) -> str:
        return f"<Acceptance of {self.message.id!r}, {'in' if self.is_in else 'on its way'}>"

    async def wait_settled(self) -> None:
        """Wait until it is in, or refused."""
        if self.settled is None:
            self.settled = trio.Event()
        await self.settled.wait()

    def mark_done(self) -> None:
        """It is in, or refused."""
        if self.settled is not None:
            self.settled.set()


ACCEPTED_IDS = 10_000
"""The number of message ids given by callers a session remembers, the newest."""
UNWANTED_IDS = 100
"""The number of messages that a session knows to stop when they come, the newest."""


@attrs.define(eq=False)
class SessionMail:
    """What a session was sent and has not dealt with, and the ids that may not come again."""

    on_busy: OnBusy = "queue"
    """The rule of messages that bring none of their own."""
    is_transient: bool = False
    """True: the session ends with its last message."""
    has_moved: bool = False
    """True: another process answers what is said to the session, or is about to."""
    is_left: bool = False
    """True: the agent stops, and its next start goes on with the session from the journal; nothing is final here any more."""
    is_sent_on: bool = False
    """True: what waited for its turn is another process's to answer, so that the session does not end here."""
    pending: int = 0
    """Outside messages that are on their way in, queued or being dealt with."""
    pins: int = 0
    """The callers that keep the session in memory."""
    acceptances: dict[str, Acceptance] | None = None
    """Acceptances of messages that were sent and have not had their turn, by their ids."""
    outcomes: dict[str, Outcome] | None = None
    """Outcomes of messages that may be repeated; see `repetitions`."""
    unkept: TurnCheckpoint | None = None
    """The last turn, if the journal failed for it: when its message is sent again, it goes on."""
    is_only_read: bool = False
    """True: an answer may be on its way to the journal, where readers alone hear of it."""
    unwanted: dict[str, str] | None = None
    """Why messages that are on their way are to be stopped, by their ids; None: none are."""
    _accepted: dict[str, None] | None = None
    _idle: trio.lowlevel.ParkingLot | None = None

    # --- ids that were given by callers ---------------------------------------------------

    def has_accepted(self, message_id: str) -> bool:
        """Return True if a message id given by a caller came before."""
        return self._accepted is not None and message_id in self._accepted

    @property
    def accepted_ids(self) -> tuple[str, ...]:
        """The ids that may not come again, oldest first."""
        return tuple(self._accepted or ())

    def know_accepted(self, ids: Iterable[str]) -> None:
        """Refuse these ids from now on, in a session that knew none."""
        self._accepted = dict.fromkeys(ids) or None

    def remember_accepted(self, message_id: str) -> None:
        """Refuse a message id given by a caller from now on."""
        if self._accepted is None:
            self._accepted = {}
        self._accepted[message_id] = None
        if len(self._accepted) > ACCEPTED_IDS:
            del self._accepted[next(iter(self._accepted))]

    def forget_accepted(self, message_id: str) -> None:
        """Let an id come again: its message was sent away, or the journal failed for it."""
        if self._accepted is not None:
            self._accepted.pop(message_id, None)

    # --- messages that were stopped before they were in -----------------------------------

    def stop_later(self, message_id: str, reason: str) -> bool:
        """Remember to stop a message that is on its way, or perhaps still comes; nothing is left of one that has ended.

        Returns True if that was not known so far.
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

    def find_reason(self, message_id: str) -> str | None:
        """Return why a message is to be stopped as soon as it is in; None: it is not."""
        return None if self.unwanted is None else self.unwanted.get(message_id)

    def forget_unwanted(self, message_id: str) -> None:
        """A message was stopped, or has ended otherwise."""
        if self.unwanted is not None:
            self.unwanted.pop(message_id, None)
            self.unwanted = self.unwanted or None

    # --- messages -------------------------------------------------------------------------

    def expect(self, acceptance: Acceptance) -> None:
        """Count a message that is on its way in."""
        self.pending += 1
        self.bring_back(acceptance)

    def bring_back(self, acceptance: Acceptance) -> None:
        """Keep a message that waits for its turn, perhaps since before a restart."""
        if self.acceptances is None:
            self.acceptances = {}
        self.acceptances[acceptance.message.id] = acceptance

    def forget(self, message_id: str, *, is_refused: bool) -> None:
        """Drop a message that ended before a restart; the id of one that was refused may come again."""
        if self.acceptances is not None:
            self.acceptances.pop(message_id, None)
            self.acceptances = self.acceptances or None
        if is_refused:
            self.forget_accepted(message_id)

    def find(self, message_id: str) -> Acceptance | None:
        """Return the acceptance of a message that has not had its turn."""
        return None if self.acceptances is None else self.acceptances.get(message_id)

    @property
    def waiting(self) -> Iterator[Message]:
        """The messages that are in and wait for their turn, in the order in which they were sent."""
        return (each.message for each in (self.acceptances or {}).values() if each.is_in)

    def refuse(self, acceptance: Acceptance) -> None:
        """Take back a message that did not get in after all, so that its id may come again."""
        self.take(acceptance.message)
        self.mark_done()
        acceptance.mark_done()

    def take(self, message: Message) -> Acceptance:
        """Take a message out: its turn begins, or it ends without one."""
        assert self.acceptances is not None  # noqa: S101 - each message in the inbox has one
        acceptance = self.acceptances.pop(message.id)
        if not self.acceptances:
            self.acceptances = None
        return acceptance

    @property
    def is_spent(self) -> bool:
        """True if the session ends with its last message, and has dealt with that."""
        return self.is_transient and not (self.pending or self.is_sent_on)

    def mark_done(self, count: int = 1) -> None:
        """Count so many outside messages as dealt with."""
        self.pending -= count
        if not self.pending:
            self.tell_idle()

    # --- idleness -------------------------------------------------------------------------

    def tell_idle(self) -> None:
        """Wake those in `park`: nothing can go on, or nothing is left."""
        if self._idle is not None:
            self._idle.unpark_all()

    async def park(self) -> None:
        """Wait for the next `tell_idle`."""
        if self._idle is None:
            self._idle = trio.lowlevel.ParkingLot()
        await self._idle.park()

    def forget_idle(self) -> None:
        """Free what `park` needed."""
        self._idle = None
