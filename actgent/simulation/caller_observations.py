"""Observations of simulated callers and handlers, which are compared with the journal at the end of a simulation."""

import re
from collections import Counter
from typing import Literal

import attrs

ObservationKind = Literal[
    "reply", "result", "failure", "acceptance", "decision", "close", "interrupt", "tool", "request"
]
COPY_PREFIX = "copy-"
"""Prefix of the ids of copied sessions."""
TASK_PREFIX = "task-"
"""Prefix of the ids of delegated tasks. The id of the session of a task contains it."""
_ROOT = re.compile(r"(?<![a-z0-9])s\d+(?![a-z0-9])")


def root_of(session_id: str) -> str:
    """Return the id of the session at the top of a session's tree, which callers use. Ids of most child sessions contain it.

    Return an empty text if `session_id` is a digest, so that its top session is unknown.
    """
    found = _ROOT.search(session_id)
    return "" if found is None else found[0]


@attrs.frozen
class StoredFirst:
    """An observation of a handler, tool, model or caller whose record had to be stored before it."""

    kind: ObservationKind
    name: str
    """Id of the observed reply, call, message or approval; for a model request, its number."""
    agent: str
    session_id: str
    series: str
    """Internal name of the session's storage in the journal at that time (see `Head.series`)."""
    records: int
    """Number of records of the session that were stored at that time."""


@attrs.define
class CallerObservations:
    """Observations of simulated callers and handlers. They survive simulated crashes."""

    sent: dict[str, str] = attrs.field(factory=dict)
    """Session id of each sent message, by message id."""
    first_sent: dict[str, int] = attrs.field(factory=dict)
    """Number of events before the first call that sent a message, by message id."""
    accepted: dict[str, str] = attrs.field(factory=dict)
    """Session id of each message whose call returned, by message id."""
    chat_calls: list[tuple[int, int, str, str]] = attrs.field(factory=list)
    """Calls of `chat()` that returned: number of events before the call, number after it, message id, session id."""
    received_statuses: dict[tuple[str, str], set[tuple[str, str]]] = attrs.field(factory=dict)
    """Delivery ids and statuses of the tool results that handlers received, by session and call id."""
    replies: dict[str, str] = attrs.field(factory=dict)
    """Session id of each reply that handlers received, by reply id."""
    final_failures: dict[tuple[str, str], str] = attrs.field(factory=dict)
    """Kind of the final failure that handlers received for a message, by session and message id."""
    interrupted_at: dict[str, float] = attrs.field(factory=dict)
    """Time at which `interrupt()` of a message returned, by message id."""
    stopped_turns: set[tuple[str, int]] = attrs.field(factory=set)
    """Pairs of session id and process number: stopping that process ended a turn of the session or of its child sessions."""
    interrupting: set[str] = attrs.field(factory=set)
    """Ids of messages that a caller tried to interrupt."""
    dropped_at: dict[str, float] = attrs.field(factory=dict)
    """Time at which `interrupt(drop_queued=True)` returned, by id of each message of the session that was accepted before."""
    closing: set[str] = attrs.field(factory=set)
    """Ids of sessions that a caller tried to close or delete."""
    closed: set[str] = attrs.field(factory=set)
    """Ids of sessions whose `aclose()` returned."""
    close_processes: dict[str, int] = attrs.field(factory=dict)
    """Number of the simulated process in which `aclose()` of a session began and was not refused, by session id."""
    removal_ends: dict[str, tuple[float, int]] = attrs.field(factory=dict)
    """End of the last removal of a schedule or task: time and number of the simulated process.
    The key is the text of the schedule, or the id of the task. The call of the removal returned, failed or was cancelled.
    """
    settled_processes: dict[int, tuple[float, float]] = attrs.field(factory=dict)
    """Simulated processes that ended normally and after a period without journal faults, by process number.
    The values are two times: when all background work was complete, and the end.
    """
    repaired_processes: set[int] = attrs.field(factory=set)
    """Numbers of the simulated processes that ended or died some time after the last fault of the journal.
    No write has an unknown outcome then.
    """
    schedule_times: dict[str, tuple[float, float]] = attrs.field(factory=dict)
    """Time at which a schedule is due and time at which it was set, by text of the schedule."""
    closed_in_journal: set[str] = attrs.field(factory=set)
    """Ids of sessions that are closed in the journal at the end."""
    parents: dict[tuple[str, str], tuple[str, ...] | None] = attrs.field(factory=dict)
    """Agent and id of the parent of each session in the journal at the end, by agent and id; None without a parent."""
    children_left_open: set[tuple[str, str]] = attrs.field(factory=set)
    """Agents and ids of the child sessions that a close has left open, because their agents were not running."""
    open_in_journal: set[tuple[str, str]] = attrs.field(factory=set)
    """Agents and ids of the sessions that are open in the journal at the end of the simulated run."""
    decisions: dict[str, list[tuple[str, str, str]]] = attrs.field(factory=dict)
    """Session id, call id and kind of each decision whose `answer()` returned, by approval id."""
    timed_states: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    """Session id and state of each schedule and task, by its text or id.

    The state is that of the last call. It is "setting" or "removing" if the outcome is unknown, and "failed" or "kept" if the
    journal failed.
    It is "cancelled" if the call of a schedule was cancelled, and "set" if the call returned. It is "removed" if the removal
    returned True, and "sent" if it returned False.
    """
    limits: dict[str, int] = attrs.field(factory=dict)
    """Limit of model calls of a session, by session id."""
    requests: dict[str, int] = attrs.field(factory=dict)
    """Number of model requests of a session, by session id."""
    deleted_sessions: set[str] = attrs.field(factory=set)
    """Ids of the sessions whose deletion returned and that no caller has created again."""
    erased_messages: set[str] = attrs.field(factory=set)
    """Ids of the messages that were accepted before a deletion of their session, which returned. Callers never send them again."""
    annotated_keys: dict[tuple[str, str], set[str]] = attrs.field(factory=dict)
    """Keys of the metadata that calls of `annotate()` have added, by agent and session id."""
    open_counts: dict[str, int] = attrs.field(factory=dict)
    """Number of calls that have opened a session, by session id."""
    abandoned_messages: dict[str, tuple[float, int, bool]] = attrs.field(factory=dict)
    """Messages that callers never send again, by message id: their last call was refused or cancelled.
    The values are the time, the number of the simulated process, and False if a crash of this process may bring the
    message back.
    """
    last_statuses: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    """Session id and status of the last tool result that handlers received for a call, by call id."""
    undisturbed_processes: set[int] = attrs.field(factory=set)
    """Numbers of the simulated processes that were not killed and had no fault of the journal."""
    schedule_ids: dict[str, str] = attrs.field(factory=dict)
    """Id of each schedule whose call has returned, by text of the schedule."""
    in_flight: Counter[str] = attrs.field(factory=Counter)
    """Number of running calls that send a message, by message id."""
    stored_first: list[StoredFirst] = attrs.field(factory=list)
    """Observations whose records had to be stored before them; empty if the journal is not in memory."""
    series: dict[tuple[str, str], str] = attrs.field(factory=dict)
    """Internal name of each session's storage in the journal at the end of the run, by agent and session id."""
    requests_by_series: Counter[str] = attrs.field(factory=Counter)
    """Number of model requests of sessions with a limit, by the internal name of the session's storage."""
    _erasing: dict[str, set[str]] = attrs.field(factory=dict)
    """Ids of the messages that were accepted before the last deletion, by session id."""
    _eras: dict[str, int] = attrs.field(factory=dict)
    """Number of times that a deletion of a session began or ended, by session id.
    The number is odd while a deletion is in progress.
    """

    def era(self, session_id: str) -> int:
        """Return the era of a session: how many deletions have begun, plus how many have ended.

        Child sessions have the era of their root session.
        """
        root = root_of(session_id)
        eras = self._eras.values()
        return self._eras.get(root, 0) if root else 2 * sum(eras) + any(each % 2 for each in eras)

    def is_valid(self, session_id: str, era: int) -> bool:
        """Return True if the result of a call may be recorded, because no deletion of the session overlapped the call.

        `era` is the number of begun and ended deletions of the session at the start of the call. The call ends now.
        """
        return era % 2 == 0 and era == self.era(session_id)

    def begin_erasure(self, session_id: str) -> None:
        """Remove the observations of a session, because its deletion begins.

        Until the deletion ends, calls to the session are not recorded.
        """
        self._eras[session_id] = self.era(session_id) + 1 | 1
        self.closing.add(session_id)
        accepted = {each for each, known in self.accepted.items() if known == session_id}
        self._erasing[session_id] = accepted - self.in_flight.keys()
        for message_id in [each for each, known in self.sent.items() if known == session_id]:
            self.accepted.pop(message_id, None)
        self.final_failures = {
            key: kind for key, kind in self.final_failures.items() if root_of(key[0]) not in ("", session_id)
        }
        self.interrupted_at = {
            key: at for key, at in self.interrupted_at.items() if not key.startswith(f"{session_id}-")
        }
        self.dropped_at = {
            key: at for key, at in self.dropped_at.items() if not key.startswith(f"{session_id}-")
        }
        self.replies = {
            key: known for key, known in self.replies.items() if root_of(known) not in ("", session_id)
        }
        self.last_statuses = {
            key: each for key, each in self.last_statuses.items() if root_of(each[0]) not in ("", session_id)
        }
        self.abandoned_messages = {
            key: each for key, each in self.abandoned_messages.items() if not key.startswith(f"{session_id}-")
        }
        self.chat_calls = [each for each in self.chat_calls if each[3] != session_id]
        self.closed.discard(session_id)
        self.close_processes.pop(session_id, None)
        self.requests.pop(session_id, None)
        self.annotated_keys = {
            key: found for key, found in self.annotated_keys.items() if key[1] != session_id
        }
        self.limits.pop(session_id, None)
        self.decisions = {
            key: [each for each in found if root_of(each[0]) not in ("", session_id)]
            for key, found in self.decisions.items()
        }
        self.timed_states = {
            key: (known, "unknown" if known == session_id else state)
            for key, (known, state) in self.timed_states.items()
        }

    def note_sending(self, message_id: str) -> None:
        """Record that a caller is sending a message now, so that a running deletion may not have erased the message.

        The message may have created the session again.
        """
        for accepted in self._erasing.values():
            accepted.discard(message_id)

    def end_erasure(self, session_id: str) -> None:
        """Record that the deletion of a session has ended.

        Messages that were accepted before the deletion are never sent again.
        """
        self._eras[session_id] = self.era(session_id) + 1
        self.erased_messages.update(self._erasing.pop(session_id, ()))
