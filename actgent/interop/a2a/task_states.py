"""States of A2A tasks. A task is the run of one message, and its state is computed from the events of this run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import attrs
import orjson

from actgent.approvals import Approval, Decision
from actgent.interop.run_events import (
    AnswerDone,
    RunApprovalDecided,
    RunEnded,
    RunEvent,
    RunReader,
    RunStarted,
    RunSuspended,
    TextDelta,
    TextDiscarded,
)
from actgent.journal.journal_interface import Journal, SessionSummary
from actgent.journal.record_types import MessageAcceptedRecord
from actgent.messages import Message, Usage
from actgent.runtime.subscriptions.session_follower import read_past
from actgent.structured_output.extract_json import strip_code_fence
from actgent.web.routes.json_serializers import to_date

from .json_conversion import Wire, decision_parts, from_parts, question_parts

SEPARATOR = "~"
"""Separator between session id and message id in a task id. Neither id contains it."""
ARTIFACT_ID = "reply"
"""Id of the only artifact of a task: the answer of the agent."""
SUBMITTED = "TASK_STATE_SUBMITTED"
WORKING = "TASK_STATE_WORKING"
INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
COMPLETED = "TASK_STATE_COMPLETED"
_STATES = {
    "interrupted": "TASK_STATE_CANCELED",
    "stopped": "TASK_STATE_CANCELED",
    "refusal": "TASK_STATE_REJECTED",
    "filter": "TASK_STATE_REJECTED",
    "guard": "TASK_STATE_REJECTED",
    "refused": "TASK_STATE_REJECTED",
}
"""A2A state of a failed task by failure kind. Other failures are `TASK_STATE_FAILED`."""
_OPEN_STATES = (SUBMITTED, WORKING, INPUT_REQUIRED)


@attrs.define
class TaskState:
    """State of one A2A task. `apply` updates the state and returns the updates for streams."""

    session_id: str
    message_id: str
    request: Sequence[Wire]
    """A2A parts of the user's message that started the task."""
    at: float
    """Unix time in seconds at which the state last changed."""
    state: str = SUBMITTED
    requested_approvals: set[str] = attrs.field(factory=set)
    """Ids of all approvals for which the task has waited so far."""
    answer_type: str = ""
    """Name of the answer's response type (instruction); empty if it has none."""
    _reply_id: str = ""
    _note: Sequence[Wire] = ()
    """A2A parts of the status message: the questions of open approvals, or the reason of a failure."""
    _text: str = ""
    """Answer text received so far."""
    _replaces_content: bool = True
    """True if the next text of the answer replaces the artifact's content; False if it is appended."""
    _other_parts: list[Wire] = attrs.field(factory=list)
    """Pictures, files and structured data of the answer, as A2A parts."""
    _notes: list[Wire] = attrs.field(factory=list)
    """History messages: texts of the agent between tool calls, and decided approvals with their decisions."""
    _metadata: Wire = attrs.field(factory=dict)

    @property
    def task_id(self) -> str:
        return f"{self.session_id}{SEPARATOR}{self.message_id}"

    @property
    def has_ended(self) -> bool:
        """True if the state of the task is terminal."""
        return self.state not in _OPEN_STATES

    def to_wire(self, *, history: int | None = None, has_artifacts: bool = True) -> Wire:
        """Encode the task as an A2A object for clients.

        Args:
            history: Maximum number of history messages; None for all, 0 to leave out the history.
            has_artifacts: False to leave out the artifacts.
        """
        found: Wire = {"id": self.task_id, "contextId": self.session_id, "status": self._status()}
        if has_artifacts:
            parts = self._parts()
            found["artifacts"] = [{"artifactId": ARTIFACT_ID, "parts": parts}] if parts else []
        if history != 0:
            sent = self._message(self.message_id, "ROLE_USER", self.request)
            found["history"] = [sent, *self._notes][-history if history else 0 :]
        if self._metadata:
            found["metadata"] = self._metadata
        return found

    def to_message(self) -> Wire:
        """Encode the answer of the task as an A2A message of the agent, which a client gets instead of the task."""
        return {
            "messageId": self._reply_id,
            "contextId": self.session_id,
            "role": "ROLE_AGENT",
            "parts": self._parts() or [{"text": ""}],
            "metadata": self._metadata,
        }

    def apply(self, event: RunEvent) -> Iterator[Wire]:
        """Update the state of the task from an event of its run, and yield the updates for clients."""
        match event:
            case RunStarted(at=at):
                yield self._become(WORKING, at)
            case TextDelta(text=text):
                yield self._grow(text)
            case TextDiscarded():
                self._replaces_content = True
            case AnswerDone():
                yield from self._complete(event)
            case RunApprovalDecided(approval=approval, decision=decision):
                self._add_decision(approval, decision)
            case RunSuspended(approvals=approvals, at=at):
                self.requested_approvals.update(each.id for each in approvals)
                yield self._become(INPUT_REQUIRED, at, question_parts(approvals))
            case RunEnded():
                yield from self._end(event)

    def _add_decision(self, approval: Approval, decision: Decision) -> None:
        """Add an approval's question and the user's decision to the history of the task."""
        asked, answered = question_parts([approval]), decision_parts(decision)
        self._notes.append(self._message(f"{approval.id}-question", "ROLE_AGENT", asked))
        self._notes.append(self._message(f"{approval.id}-decision", "ROLE_USER", answered))

    def _grow(self, text: str) -> Wire:
        is_first = self._replaces_content
        self._text = text if is_first else self._text + text
        self._replaces_content = False
        return self._artifact([{"text": text}], is_first=is_first)

    def _complete(self, event: AnswerDone) -> Iterator[Wire]:
        self._reply_id = event.reply_id
        if not event.calls:
            self._other_parts = from_parts(event.media)
            if self._other_parts:
                yield self._artifact(self._other_parts, is_first=self._replaces_content)
                self._replaces_content = False
            return
        if event.text:
            self._notes.append(self._message(event.reply_id, "ROLE_AGENT", [{"text": event.text}]))
        self._replaces_content = True

    def _end(self, event: RunEnded) -> Iterator[Wire]:
        note: list[Wire] = []
        if event.failed is not None:
            note = [{"text": event.reason or f"the agent failed: {event.failed}"}]
            self._metadata["actgent.failed"] = event.failed
        elif event.data is not None:
            yield self._add_data(orjson.loads(event.data), is_event=event.is_event)
        self.answer_type = event.answer_type
        self._metadata["actgent.usage"] = _usage(event.usage)
        state = COMPLETED if event.failed is None else _STATES.get(event.failed, "TASK_STATE_FAILED")
        yield {**self._become(state, event.at, note), "metadata": self._metadata}

    def _add_data(self, data: Any, *, is_event: bool) -> Wire:
        """Add structured data to the artifact of the task, and return the update for clients.

        If the artifact's text only encodes the data, or if `is_event` is True, the data replaces the text.
        """
        part = {"data": data, "mediaType": "application/json"}
        self._other_parts.append(part)
        is_replaced = (
            not self._replaces_content and bool(self._text) and (is_event or _encodes(self._text, data))
        )
        is_first = self._replaces_content or is_replaced
        if is_replaced:
            self._text = ""
        self._replaces_content = False
        return self._artifact(self._other_parts if is_replaced else [part], is_first=is_first)

    def _become(self, state: str, at: float, note: Sequence[Wire] = ()) -> Wire:
        self.state, self.at, self._note = state, at or self.at, note
        return {"taskId": self.task_id, "contextId": self.session_id, "status": self._status()}

    def _status(self) -> Wire:
        found: Wire = {"state": self.state, "timestamp": to_date(self.at)}
        if self._note:
            found["message"] = self._message(f"{self.message_id}-status", "ROLE_AGENT", self._note)
        return found

    def _parts(self) -> list[Wire]:
        if self._replaces_content:
            return []
        return [*([{"text": self._text}] if self._text else []), *self._other_parts]

    def _artifact(self, parts: Sequence[Wire], *, is_first: bool) -> Wire:
        return {
            "taskId": self.task_id,
            "contextId": self.session_id,
            "artifact": {"artifactId": ARTIFACT_ID, "parts": parts},
            "append": not is_first,
            "lastChunk": False,
        }

    def _message(self, message_id: str, role: str, parts: Sequence[Wire]) -> Wire:
        known = {"messageId": message_id, "contextId": self.session_id, "taskId": self.task_id}
        return {**known, "role": role, "parts": list(parts)}


def _encodes(text: str, data: Any) -> bool:
    """Return True if a text is the JSON encoding of `data`, with or without a code fence."""
    try:
        return bool(orjson.loads(strip_code_fence(text)) == data)
    except orjson.JSONDecodeError:
        return False


def to_stream_event(update: Wire) -> Wire:
    """Wrap an update from `TaskState.apply` as an event of the A2A stream."""
    return {"artifactUpdate" if "artifact" in update else "statusUpdate": update}


def _usage(usage: Usage) -> Wire:
    return {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens}


async def read_task_states(
    journal: Journal,
    head: SessionSummary,
    approvals: Callable[[], Sequence[Approval]],
    *,
    after: int,
    message_id: str = "",
) -> dict[str, TaskState]:
    """Compute the states of a session's tasks from its records. Return them by message id.

    Args:
        journal: Journal of the session.
        head: Summary of the session. Records that were written after it are not read.
        approvals: Returns the open approvals of the session.
        after: Number of the record after which reading starts. Tasks that began before it are left out.
        message_id: Id of the only message whose task is returned; empty for all messages of users.
    """
    found: dict[str, TaskState] = {}
    readers: dict[str, RunReader] = {}
    async with aclosing(read_past(journal, head.key, after=after, last=head.records)) as records:
        async for item in records:
            if isinstance(item.record, MessageAcceptedRecord):
                message = item.record.message
                if message.id == message_id or (not message_id and message.sender.kind == "user"):
                    found[message.id] = new_task(head.session_id, message)
                    readers[message.id] = RunReader(message.id, approvals, continues_after_suspension=True)
            for task in [each for each in found.values() if not each.has_ended]:
                for event in readers[task.message_id].read(item):
                    for _ in task.apply(event):
                        pass
    return found


def new_task(session_id: str, message: Message) -> TaskState:
    """Return the initial state of the task for an accepted message, before its turn begins."""
    parts = from_parts(message.parts) or [{"text": ""}]
    return TaskState(session_id, message.id, parts, message.created_at)
