"""One call of an agent as an MCP tool: the run of one message in a session, with questions to the client's user."""

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import attrs
import orjson
import trio

from actgent.agents.session import Session, context_of, session_of_context
from actgent.approvals import Approval, Decision
from actgent.errors import ApprovalAlreadyDecided, Fenced, InvalidArguments, SessionClosed
from actgent.information_flow_labels import TRUSTED, Label, label_of
from actgent.interop.approval_forms import decision_of
from actgent.interop.run_events import (
    AnswerDone,
    RunEnded,
    RunEvent,
    RunReader,
    RunSuspended,
    visible_text_filter,
)
from actgent.interop.temporary_sessions import TemporarySession, temporary_session
from actgent.journal.journal_interface import Journal
from actgent.journal.record_types import AgentMessageRecord, OutcomeRecord
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import Sender, new_id
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.runtime.subscriptions.session_follower import SessionFollower, follow_session
from actgent.sessions.subscriptions import FollowedItem, FollowedRecord

MESSAGE_ID = "actgent/messageId"
"""Member of `_meta` with the id of the message; a repeated call with the same id gives the same answer."""
Report = Callable[[str], Awaitable[None]]
"""Async function that reports the current activity of the agent as progress."""
Ask = Callable[[Approval], Awaitable[Decision | None]]
"""Async function that asks the client's user about an approval. None means no decision."""


@attrs.frozen(kw_only=True)
class CallState:
    """State of a call that continues after a question. The client stores the sealed state and returns it with the answer."""

    session_id: str
    """Id of the session in which the agent answers."""
    message_id: str
    """Id of the message that the agent answers."""
    after: int
    """Number of the journal record at which the turn was suspended."""
    is_temporary: bool
    """True if the session is temporary and ends with the answer."""

    def to_text(self) -> str:
        """Encode the state as text, which the client sends back with its decisions."""
        return orjson.dumps(attrs.asdict(self)).decode()

    @classmethod
    def from_text(cls, text: str) -> "CallState":
        """Decode the state from the text that `to_text` returned."""
        return cls(**orjson.loads(text))


@attrs.frozen(kw_only=True)
class CallAnswer:
    """Answer or error of a finished call."""

    text: str
    """Text of the agent's answer, or a description of the failure."""
    data: Any = None
    """Structured data of the answer; None without data."""
    is_error: bool = False
    """True if the call failed and has no answer."""
    label: Label = TRUSTED
    """Untrusted sources and permitted readers of the answer."""


@attrs.frozen(kw_only=True)
class Questions:
    """Result of a call that cannot continue before approvals are decided."""

    approvals: Sequence[Approval]
    """Open approvals that the client must decide, oldest first."""
    state: CallState
    """State with which the client continues the call after the decisions."""


@attrs.define(kw_only=True)
class AgentCall:
    """One call of an agent as an MCP tool."""

    journal: Journal
    opener: SessionOpener
    """Object that opens the agent's sessions."""
    owner: str
    """Name of the session's owner."""
    report: Report
    """Function that reports the progress of the call to the client."""
    ask: Ask | None
    """Function that asks the client for a decision during the call. If None, the call returns `Questions` instead."""
    label: Label = TRUSTED
    """Untrusted sources and permitted readers of the message."""
    on_message: Callable[[SessionKey], None] | None = None
    """Function that is called after the session has accepted the message."""
    _text: str = attrs.field(default="", init=False)
    _data: Any = attrs.field(default=None, init=False)
    _label: Label = attrs.field(default=TRUSTED, init=False)
    _cursor: int = attrs.field(default=0, init=False)

    async def start(self, message: str, *, session_id: str, message_id: str) -> CallAnswer | Questions:
        """Send a message to the agent. Return the answer, or the open approvals if the client must decide them first.

        A repeated message id does not send the message again: the answer to the first one is returned.

        Args:
            message: Text of the message.
            session_id: Id of the session, which is created if necessary; empty for a temporary session that closes after the answer.
            message_id: Id of the message, with which a call can be repeated safely; empty to generate an id.

        Raises:
            ActgentError: The session or the message was not accepted.
        """
        is_temporary = not session_id
        if is_temporary:
            session_id = (
                session_of_call(self.owner, message_id) if message_id else self.journal.new_session_id()
            )
        state = CallState(
            session_id=session_id, message_id=message_id or new_id(), after=0, is_temporary=is_temporary
        )
        async with self._count_reader(state) as shared:
            try:
                session = session_of_context(await self.opener.ensure(Sender(self.owner), session_id))
            except SessionClosed:
                if not (is_temporary and message_id):
                    raise
                return await self._read(None, state, shared)  # a repeated call after its end
            shared.session = session
            if context_of(session).has_accepted(state.message_id):
                return await self._read(session, state, shared)
            if waiting := _waiting_calls(session):
                # The message would wait for decisions that this client may never see.
                text = f"the session waits for decisions or results of other calls: {waiting}"
                return CallAnswer(text=text, is_error=True)
            return await self._read(session, state, shared, message=message)

    async def resume(self, state: CallState, responses: Mapping[str, Any]) -> CallAnswer | Questions:
        """Record the decisions of a client, and continue the call. Return the answer or the next questions.

        Args:
            state: State from the `Questions` that were decided.
            responses: Results of `elicitation/create`, by approval id.
        """
        async with self._count_reader(state) as shared:
            try:
                session = session_of_context(
                    await self.opener.open(state.session_id, owner=Sender(self.owner))
                )
            except SessionClosed:
                return await self._read(None, state, shared)  # a repeated call after its end
            shared.session = session
            for approval in session.approvals:
                given = responses.get(approval.id)
                if given is not None:
                    decision = decision_of(approval, given.get("action"), given.get("content"))
                    try:
                        await self._decide(session, approval, decision)
                    except InvalidArguments:  # the values do not fit the form, which is asked again
                        return _questions(session.approvals, state, shared)
            open_approvals = session.approvals
            if any(each.id not in responses for each in open_approvals):
                return _questions(open_approvals, state, shared)
            if open_approvals:
                return _undecided_error(session)
            return await self._read(session, state, shared)

    def _count_reader(self, state: CallState) -> AbstractAsyncContextManager[TemporarySession]:
        """Return a context manager for one reader of the call's session. A temporary session ends after its last reader.

        For other sessions, the context manager does nothing.
        """
        if not state.is_temporary:
            return nullcontext(TemporarySession())
        return temporary_session(self.opener, state.session_id, "" if state.after else state.message_id)

    async def _decide(self, session: Session, approval: Approval, decision: Decision | None) -> None:
        if decision is None:
            return
        try:
            await session.answer(approval, decision, by=self.owner)
        except ApprovalAlreadyDecided:
            return

    async def _read(
        self, session: Session | None, state: CallState, shared: TemporarySession, *, message: str = ""
    ) -> CallAnswer | Questions:
        """Read the run until it ends or has questions for the client. If `message` is not empty, send it first."""
        reader = RunReader(
            state.message_id,
            lambda: () if session is None else session.approvals,
            str if session is None else visible_text_filter(session),
            turn=state.message_id if state.after else "",
        )
        key = SessionKey(self.opener.running.name, state.session_id)
        after = None if message else state.after
        async with follow_session(self.journal, None, key, after=after) as follower:
            self._cursor = follower.cursor
            if message and session is not None:
                await session.chat(message, message_id=state.message_id, label=self.label)
                if self.on_message is not None:
                    self.on_message(key)
            return await self._follow(follower, reader, session, state, shared)

    async def _follow(
        self,
        follower: SessionFollower,
        reader: RunReader,
        session: Session | None,
        state: CallState,
        shared: TemporarySession,
    ) -> CallAnswer | Questions:
        while True:  # noqa: ASYNC913 - each path waits
            try:
                item = await follower.receive()
            except trio.EndOfChannel:
                return CallAnswer(text="the session was closed", is_error=True)
            except Fenced:
                shared.session = None  # the other process ends it
                return CallAnswer(text="another process continues the session: call again", is_error=True)
            for event in self._read_events(item, reader):
                match event:
                    case AnswerDone():
                        self._text = event.text
                        for call in event.calls:
                            await self.report(f"runs {call.name}")
                    case RunEnded():
                        shared.is_over = True
                        return self._answer(event, TRUSTED if session is None else session.label)
                    case RunSuspended():
                        result = await self._ask_all(event, session, state, shared)
                        if result is not None:
                            return result
                        reader.is_over = False

    def _read_events(self, item: FollowedItem, reader: RunReader) -> Sequence[RunEvent]:
        if isinstance(item, FollowedRecord):
            self._cursor = item.number
            record = item.record
            if isinstance(record, OutcomeRecord) and record.data and item.turn == reader.message_id:
                self._data = orjson.loads(record.data)
            if isinstance(record, AgentMessageRecord):
                self._label |= record.message.label
            elif isinstance(record, OutcomeRecord):
                self._label |= label_of(record.via)
        return reader.read(item)

    def _answer(self, event: RunEnded, label: Label) -> CallAnswer:
        """Return the answer or the error of the ended run. `label` is the label (sources and readers) of the session."""
        label |= self._label
        if event.failed is None:
            return CallAnswer(text=self._text, data=self._data, label=label)
        reason = event.reason or f"the agent failed: {event.failed}"
        return CallAnswer(text=reason, is_error=True, label=label)

    async def _ask_all(
        self, event: RunSuspended, session: Session | None, state: CallState, shared: TemporarySession
    ) -> CallAnswer | Questions | None:
        """Ask the client to decide the approvals of a suspended turn. Return None if all were decided and the turn continues."""
        asked = {each.id for each in event.approvals}
        waiting = [] if session is None else [each for each in session.approvals if each.id in asked]
        if session is None or not waiting:
            return None
        if self.ask is None:
            return _questions(waiting, attrs.evolve(state, after=self._cursor), shared)
        for approval in waiting:
            await self._decide(session, approval, await self.ask(approval))
        if any(each.id in asked for each in session.approvals):
            return _undecided_error(session)
        return None


def agent_tool_name(agent: str) -> str:
    """Return the name of the MCP tool of an agent: the agent's name, with `_` for characters that tool names cannot have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", agent)[:128]


def _questions(approvals: Sequence[Approval], state: CallState, shared: TemporarySession) -> Questions:
    """Return the questions for the client, and mark a temporary session to stay open until the decisions arrive."""
    shared.is_kept = True
    return Questions(approvals=approvals, state=state)


def _undecided_error(session: Session) -> CallAnswer:
    """Return the error for a call whose approvals were not decided. In a session that the client chose, they stay open."""
    questions = "; ".join(each.question or each.tool_name for each in session.approvals)
    return CallAnswer(text=f"the call waits for an approval: {questions}", is_error=True)


def _waiting_calls(session: Session) -> str:
    """Return the names of the tools for whose approval or result a session's turn waits, as text; empty if it does not wait."""
    if context_of(session).suspension is None:
        return ""
    return ", ".join(each.tool_name for each in (*session.approvals, *session.caller_calls))


def session_of_call(owner: str, message_id: str) -> str:
    """Derive the id of a call's temporary session from the message id, so that a repeated call finds the session."""
    text = f"{owner}\n{message_id}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16, person=b"actgent.mcp").hexdigest()
