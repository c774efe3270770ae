"""Runs for requests of interoperability protocols: find or create the session, enqueue the message, stream the events."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import attrs
import trio
from starlette.types import Receive, Scope as ASGIScope, Send

from actgent.agents.session import Session, context_of, services_of, session_of_context
from actgent.approvals import Approval, Decision
from actgent.errors import ApprovalAlreadyDecided, ConfigurationError, SessionExists, SessionMoved
from actgent.journal.journal_interface import SessionSummary
from actgent.journal.record_types import (
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    SuspensionRecord,
    TurnOptions,
)
from actgent.messages import Part, Sender, ToolSpec
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.runtime.subscriptions.session_follower import follow_session
from actgent.sessions.imported_history import ImportedMessage
from actgent.support.strict_json import encode_json
from actgent.tools.tools_run_by_caller import check_caller_tools
from actgent.web.problem_documents import Problem, missing
from actgent.web.routes.common_request_schemas import check_client_id
from actgent.web.routes.endpoints import HTTPCall
from actgent.web.routes.messages import has_content
from actgent.web.server.http_request_framing import DIRECT
from actgent.web.streaming.session_events import find_message
from actgent.web.streaming.sse import (
    ALIVE_FRAME,
    ALIVE_INTERVAL_SECONDS,
    HEADERS,
    Streamed,
    StreamWriter,
    run_until_disconnect,
)

from .run_events import MOVED, RunEnded, RunEvent, RunReader, RunSuspended, read_run, visible_text_filter
from .temporary_sessions import TemporarySession, temporary_session

ENQUEUE_SECONDS = 10
"""Seconds for which a message waits for room in the inbox."""
PAGE_SIZE = 200
"""Number of records per read in the search for a decision."""


@attrs.frozen(kw_only=True)
class DecisionPosition:
    """Position of a decision in the records of a session."""

    after: int
    """Number of the record before the decision's record."""
    is_waiting: bool
    """True if the turn is still suspended, because other approvals that were requested before the decision are open."""
    turn: str
    """Id of the message that started the turn that the decision resumed."""


@attrs.frozen(kw_only=True, eq=False)
class Run:
    """Run that a request starts: a message to a session, or decisions and tool results for its suspended turn."""

    call: HTTPCall
    session: Session
    message_id: str = ""
    content: str | Sequence[Part] = ""
    options: TurnOptions | None = None
    """Options of this turn; None for the options of the agent."""
    decisions: Mapping[str, Decision] = attrs.field(factory=dict)
    """Approval decisions in the request, by approval id. If it has decisions or results, no message is sent."""
    results: Mapping[str, Decision] = attrs.field(factory=dict)
    """Results of client-executed tool calls (`Respond` or `Reject`), by call id or approval id."""
    after_decision: str = ""
    """Id of a decided approval, if the client reads the run after the decision. Empty if the client starts a run."""
    is_read: bool = False
    """True if the request sends no message, and only reads the run of an earlier message."""
    is_whole: bool = False
    """False if a suspension always ends the run. True if a suspension does not end the run when the turn has resumed after it.
    """
    continues_after_suspension: bool = False
    """True to continue after suspensions of the turn, so that only the end of the turn ends the run."""
    is_temporary: bool = False
    """True if the session serves only this run.
    The turn stops when all clients that read it have disconnected, and the session is then closed.
    """

    @asynccontextmanager
    async def open(self, *, streams: bool) -> AsyncGenerator[AsyncGenerator[Sequence[RunEvent], None], None]:
        """Send the message or record the decisions, and yield the groups of events of the run.

        A message id that was sent before gives the run of that message again, from its beginning. Decisions that were already
        recorded give the run that followed them.

        Args:
            streams: True to emit partial answers. False emits only complete answers, and the model does not stream for this
                reader, which saves a quarter of the CPU time of a message.

        Raises:
            Problem: The message id was sent with different content, an approval or call is unknown, or the session waits for
                results of client-executed tool calls.
        """
        reader = RunReader(
            self.message_id,
            self._open_approvals,
            visible_text_filter(self.session),
            is_whole=self.is_whole,
            continues_after_suspension=self.continues_after_suspension,
        )
        async with self._count_reader() as shared:
            after, is_new, is_waiting = await self._find_begin()
            key, journal = context_of(self.session).key, self.call.gateway.access.journal
            table = services_of(self.session).running.sessions if streams else None
            context = context_of(self.session)
            is_idle = is_new and not context.pending and context.open_turn_id is None
            async with follow_session(journal, table, key, after=after, is_idle=is_idle) as follower:
                if is_new:
                    await self._submit()
                    is_waiting = self.is_decision and context_of(self.session).ledger().has_open
                source = (
                    _yield_once(reader.suspend())
                    if is_waiting
                    else read_run(follower, reader, alive_seconds=ALIVE_INTERVAL_SECONDS)
                )
                try:
                    async with aclosing(source) as events:
                        yield events
                finally:
                    shared.is_over |= reader.is_over and not reader.is_suspended
                    shared.is_kept |= reader.is_suspended

    @asynccontextmanager
    async def _count_reader(self) -> AsyncGenerator[TemporarySession, None]:
        """Count a reader of a stateless session during the `async with` block, and end the session after its last reader.

        For other sessions, do nothing.
        """
        if not self.is_temporary:
            yield TemporarySession()
            return
        opener = self.call.gateway.access.known_opener(self.session.agent_name)
        async with temporary_session(opener, self.session.id, self.message_id) as shared:
            shared.session = self.session
            shared.is_kept |= (
                self.is_decision
            )  # until the decisions are recorded, the turn waits for this client
            yield shared

    @property
    def is_decision(self) -> bool:
        """True if the request contains decisions or tool results instead of a message."""
        return bool(self.decisions or self.results or self.after_decision)

    def _open_approvals(self) -> Sequence[Approval]:
        return (*self.session.approvals, *self.session.caller_calls)

    async def _find_begin(self) -> tuple[int, bool, bool]:
        """Find the beginning of the run in the session's records.

        Return the number of the record before the run, True if the run is new, and True if its turn is still suspended.
        """
        key, journal = context_of(self.session).key, self.call.gateway.access.journal
        head = journal.cached_head(*key) or await journal.head(*key)
        if head is None:
            raise missing()
        if self.is_decision:
            is_open = [each for each in self._open_approvals() if self._decision_on(each) is not None]
            if is_open:
                return head.records, True, False
            place = await self.find_decision()
            return place.after, False, place.is_waiting
        # The head was read before this test, so that records which are written in between follow it.
        if not self.is_read and not context_of(self.session).has_accepted(self.message_id):
            self._check_has_results()
            return head.records, True, False
        story = await find_message(journal, key, self.message_id, head.records)
        if story is None or story.accepted is None:
            if self.is_read:
                raise missing()
            return head.records, False, False  # accepted after the head was read
        if not self.is_read and not has_content(self.session, story.accepted.message, self._content):
            raise Problem(
                "key-reused",
                "this message id was sent before with a different message: use a new id for each message",
            )
        return story.number - 1, False, False

    def _decision_on(self, approval: Approval) -> Decision | None:
        """Return the decision or tool result in the request for an open approval; None if it has neither.

        Results are accepted only for client-executed tool calls, because results do not require the scope `approve`.
        """
        if approval.for_caller and approval.session_id == self.session.id:
            result = self.results.get(approval.id) or self.results.get(approval.call_id)
            if result is not None:
                return result
        return self.decisions.get(approval.id)

    def _check_has_results(self) -> None:
        """Check that the turn of the session does not wait for results of client-executed tool calls.

        A new message would also wait for these results.

        Raises:
            Problem: The turn waits for such results.
        """
        context = context_of(self.session)
        if context.suspension is not None and (waiting := self.session.caller_calls):
            names = ", ".join(each.tool_name for each in waiting)
            raise Problem(
                "suspended",
                f"the session waits for the results of tool calls ({names}): send these results first",
            )

    async def find_decision(self) -> "DecisionPosition":
        """Return the position of the first decision in the request that belongs to the latest suspension which the request decides.

        A client may repeat the results of earlier suspensions of the turn, whose answers it has already received.

        Raises:
            Problem: The session has no such approval or call, or it is not decided.
        """
        key = context_of(self.session).key
        still_open = {each.id for each in self._open_approvals()}
        journal, number, asked = self.call.gateway.access.journal, 0, dict[str, Approval]()
        found, is_first, turn = None, True, ""
        while records := await journal.read(key.session_id, agent=key.agent, after=number, limit=PAGE_SIZE):
            for record in records:
                match record:
                    case SuspensionRecord():
                        is_first, turn = True, record.message_id
                    case ApprovalRequestRecord(approval=approval):
                        asked[approval.id] = approval
                    case ApprovalDecisionRecord(approval_id=known):
                        if is_first and self._has_decided(asked.get(known)):
                            is_waiting = not still_open.isdisjoint(asked)
                            found = DecisionPosition(after=number, is_waiting=is_waiting, turn=turn)
                            is_first = False
                number += 1
        if found is None:
            raise missing()
        return found

    def _has_decided(self, approval: Approval | None) -> bool:
        if approval is None:
            return False
        return approval.id == self.after_decision or self._decision_on(approval) is not None

    @property
    def _content(self) -> str | list[Part]:
        return self.content if isinstance(self.content, str) else list(self.content)

    async def _submit(self) -> None:
        if self.is_decision:
            decisions = [(each, self._decision_on(each)) for each in self._open_approvals()]
            for approval, decision in decisions:
                if decision is not None:
                    with suppress(ApprovalAlreadyDecided):
                        await self.session.answer(approval.id, decision, by=Sender(self.call.caller.owner))
            return
        digest, messages = self.call.caller.token.digest, self.call.gateway.messages
        await messages.check(digest, self.call.gateway.access.journal)
        context, services = context_of(self.session), services_of(self.session)
        message = context.new_message(self._content, message_id=self.message_id, deadline=ENQUEUE_SECONDS)
        services.running.inbox.check_room(message)
        await services.admission.accept(context, message, once=True, options=self.options)
        messages.count(digest, context.key)


async def _yield_once(events: Sequence[RunEvent]) -> AsyncGenerator[Sequence[RunEvent], None]:
    yield events


def caller_tools(call: HTTPCall, agent: str, tools: Iterable[Mapping[str, Any]]) -> tuple[ToolSpec, ...]:
    """Validate the tools that a client offers for one turn and executes itself. Return their specifications.

    Raises:
        Problem: The agent is unknown, a tool is invalid, or the agent has a tool with the same name.
    """
    if not isinstance(tools, list):
        raise Problem("invalid", "tools must be a list", param="tools")
    registry = call.gateway.access.known_opener(agent).running.core.calling.registry
    try:
        return check_caller_tools(tools, registry)
    except ConfigurationError as error:
        raise Problem("invalid", str(error), param="tools") from error


async def suspended_session(call: HTTPCall, agent: str | None, session_id: str) -> Session:
    """Return the caller's session whose suspended turn a request continues.

    Raises:
        Problem: The caller has no such session, or it was closed.
    """
    access = call.gateway.access
    head = await access.head(call.caller, session_id, agent)
    if head.closed:
        raise missing()
    return await access.open_session(head)


async def find_session(call: HTTPCall, agent: str, session_id: str) -> Session:
    """Return the caller's session with this id, or create the session if it does not exist.

    Raises:
        Problem: The agent is unknown, the id is invalid, or the session belongs to another owner.
    """
    access, opener = call.gateway.access, call.gateway.access.known_opener(agent)
    check_client_id("the id of a session", session_id)
    head = await access.journal.head(agent, session_id)
    if head is None:
        try:
            return await create_session(call, opener, session_id=session_id)
        except SessionExists:  # another request created it first
            head = await access.journal.head(agent, session_id)
    if head is None or not await access.may_access(call.caller, head):
        raise missing()
    return await access.open_session(head)


async def existing_session(
    call: HTTPCall, agent: str | None, session_id: str
) -> tuple[Session, SessionSummary]:
    """Return the caller's existing session with this id, for reading, and its summary.

    Raises:
        Problem: The caller has no such session.
    """
    head = await call.gateway.access.head(call.caller, session_id, agent)
    return await call.gateway.access.readable(head), head


async def create_session(
    call: HTTPCall,
    opener: SessionOpener,
    *,
    session_id: str | None = None,
    history: Iterable[ImportedMessage] = (),
) -> Session:
    """Create a session for the caller. If `session_id` is None, the server chooses the id.

    `history` are the earlier messages of the conversation.
    """
    return session_of_context(
        await opener.create(Sender(call.caller.owner), session_id=session_id, history=list(history))
    )


def with_system_layer(session: Session, options: TurnOptions | None) -> TurnOptions | None:
    """Move the text `options.tail` of a request from the end of the conversation to the end of the system prompt.

    Return the new options, or the same options if the system prompt depends on the session's state.
    """
    if options is None or not options.tail:
        return options
    prompts, system = services_of(session).running.core.prompts, context_of(session).conversation.system
    if system is None and prompts.live is not None:
        return options
    prompt = prompts.system_prompt() if system is None else system
    return attrs.evolve(options, system=f"{prompt}\n\n{options.tail}", tail="")


def to_sse(data: Mapping[str, Any], *, event: str = "") -> bytes:
    """Encode JSON data as one server-sent event with an optional event name."""
    head = f"event: {event}\n" if event else ""
    return head.encode() + b"data: " + encode_json(data) + b"\n\n"


class RunStream(Streamed):
    """HTTP response that streams a run. `encode` converts each event to bytes."""

    def __init__(
        self,
        run: Run,
        encode: Callable[[RunEvent], bytes],
        *,
        first: Callable[[], bytes] = bytes,
        last: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Args: `first` returns the bytes to send before the events; `last` are the bytes to send after the events."""
        super().__init__(status_code=200, headers={**HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._run, self._encode, self._first, self._last = run, encode, first, last

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        direct = scope.get("state", {}).get(DIRECT) if scope["http_version"] == "1.1" else None
        write = StreamWriter(send, direct)

        async def work() -> None:
            async with self._run.open(streams=True) as events:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                # Each write is a system call and wakes the client, so the first event goes out with the first group.
                waiting = self._first()
                async for group in events:
                    data = waiting + (b"".join(map(self._encode, group)) if group else ALIVE_FRAME)
                    is_last = bool(group) and isinstance(group[-1], RunEnded | RunSuspended)
                    await write(data + self._last if is_last else data)
                    waiting = b""
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        streams = self._run.call.gateway.streams
        streams.open += 1
        try:
            await run_until_disconnect(receive, work)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has disconnected
        finally:
            streams.open -= 1
            streams.cut += direct is not None and direct.is_cut


async def collect(run: Run) -> list[RunEvent]:
    """Read a run until it ends, and return its events. If the client disconnects, reading stops.

    Raises:
        SessionMoved: Another process owns the session now. The same request, sent there, gives the run again.
    """
    collected: list[RunEvent] = []

    async def work() -> None:
        async with run.open(streams=False) as events:
            async for group in events:
                collected.extend(group)

    await run_until_disconnect(run.call.receive, work)
    last = collected[-1] if collected else None
    if isinstance(last, RunEnded) and last.failed == MOVED and not run.is_temporary:
        raise SessionMoved(run.session.agent_name, run.session.id)
    return collected
