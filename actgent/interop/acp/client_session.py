"""One session that an ACP client has opened: its updates, prompts and permission requests."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs
import trio

from actgent.agents.session import Session, context_of, services_of
from actgent.approvals import Approval, Approve, Decision, Reject
from actgent.errors import ActgentError, Fenced, JournalError
from actgent.interop.approval_forms import decision_of, form_of, question_text
from actgent.interop.run_events import (
    AnswerDone,
    RunEnded,
    RunEvent,
    RunReader,
    RunSuspended,
    RunToolDone,
    RunToolProgressed,
    TextDelta,
    TextDiscarded,
    tool_error_text,
    visible_text_filter,
)
from actgent.journal.journal_interface import Journal
from actgent.journal.record_types import MessageEndRecord
from actgent.messages import NO_USAGE, CallProgress, Message, Part, Text, ToolCall, ToolResult, Usage, new_id
from actgent.runtime.subscriptions.session_follower import follow_session
from actgent.sessions.subscriptions import FollowedItem, FollowedRecord, PartialText
from actgent.support.safe_logging import logger_of
from actgent.web.problem_documents import public_text

from .content_blocks import text_block, to_blocks
from .json_rpc import INTERNAL_ERROR, JSONRPCConnection, RequestId, RPCError, Wire

STOP_REASONS = {
    "length": "max_tokens",
    "limit": "max_turn_requests",
    "refusal": "refusal",
    "filter": "refusal",
    "guard": "refusal",
    "interrupted": "cancelled",
    "stopped": "cancelled",
}
"""Stop reasons of ACP by the kind of the failure."""
CANCELLED = "the client has cancelled the prompt"
_ALLOW: Wire = {"optionId": "allow", "name": "Allow", "kind": "allow_once"}
_REJECT: Wire = {"optionId": "reject", "name": "Reject", "kind": "reject_once"}
_log = logger_of(__name__)


@attrs.define(eq=False)
class Prompt:
    """A prompt of the ACP client, from its request until its message has ended."""

    request_id: RequestId
    """Id of the client's request."""
    former: "Prompt | None" = None
    """Previous prompt of the session, which must be sent first; None after it was sent."""
    message_id: str = attrs.field(factory=new_id)
    """Id of the message that is sent to the session for the prompt."""
    sent: trio.Event = attrs.field(factory=trio.Event)
    """Event that is set when the message is in the inbox or was rejected. The next prompt of the session waits for it."""
    ended: trio.Event = attrs.field(factory=trio.Event)
    """Event that is set when the message has ended."""
    is_cancelled: bool = False
    """True after the client has cancelled the prompt."""
    failed: str | None = None
    """Kind of the failure; None if the prompt was answered or has not ended."""
    reason: str = ""
    """Description of the failed turn, without exception messages of user code; empty if the turn ended with an answer."""
    stop: str = ""
    """Reason why the model stopped its last answer."""
    usage: Usage = NO_USAGE
    """Tokens and cost of the model calls that answered the prompt."""

    def end(self, failed: str | None, reason: str = "") -> None:
        """Record that the message of the prompt has ended. Only the first call has an effect.

        `failed` is the kind of the failure, None for an answer; `reason` describes the failure.
        """
        if not self.ended.is_set():
            self.failed, self.reason = failed, reason
            self.ended.set()

    def to_result(self) -> Wire:
        """Return the result of the client's prompt request.

        Raises:
            RPCError: The message failed, and ACP has no stop reason for this kind of failure.
        """
        found = self.failed
        stop = STOP_REASONS.get(found or ("length" if self.stop == "length" else ""), "end_turn")
        if found is not None and found not in STOP_REASONS:
            raise RPCError(INTERNAL_ERROR, self.reason or f"the agent failed: {found}")
        result: Wire = {"stopReason": stop, "_meta": {"actgent": {"messageId": self.message_id}}}
        if found is None:
            used = self.usage
            result["usage"] = {
                "inputTokens": used.input_tokens,
                "outputTokens": used.output_tokens,
                "totalTokens": used.input_tokens + used.output_tokens,
            }
        return result


class OpenSession:
    """Session that the ACP client has opened. It sends updates of all turns of the session to the client."""

    def __init__(self, session: Session, cwd: str, connection: JSONRPCConnection, *, has_forms: bool) -> None:
        """Args: `cwd` is the client's working directory; `has_forms` is True if the client can show forms."""
        self.session, self.cwd = session, cwd
        self._connection, self._has_forms = connection, has_forms
        self._encoder = UpdateEncoder()
        self._readers: dict[str, RunReader] = {}
        """Readers of the turns that have not ended, by the id of their message."""
        self._prompts: dict[str, Prompt] = {}
        """Prompts that have not ended, by the id of their message, oldest first."""
        self._last: Prompt | None = None
        self._asked: set[str] = set()
        """Ids of the approvals that were sent to the client."""
        self._update_lock = trio.Lock()
        self._scope = trio.CancelScope()
        self.is_over = False
        """True after `follow` has ended. Then no updates and no prompt results are sent."""

    def close(self) -> None:
        """Stop sending updates to the client. The session itself stays open."""
        self._scope.cancel()

    async def follow(
        self, journal: Journal | None, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Send the session's updates to the client until the session or the connection ends.

        Raises:
            ActgentError: The events of the session cannot be read; nothing was sent.
        """
        key, table = context_of(self.session).key, services_of(self.session).running.sessions
        failed, reason, has_begun = "stopped", "the session was closed", False
        try:
            with self._scope:
                async with follow_session(journal, table, key, after=None) as follower:
                    task_status.started()
                    has_begun = True
                    while True:
                        await self._receive(await follower.receive())
        except trio.EndOfChannel:
            pass  # the session was closed or erased
        except Fenced:
            failed, reason = "moved", "another process continues the session"
        except ActgentError as error:
            if not has_begun:
                raise
            _log.error("session %s cannot be followed: %s", self.session.id, error)
            failed, reason = "journal", public_text(error)
        finally:
            self.is_over = True
        for prompt in self._prompts.values():
            prompt.end(failed, reason)

    async def send_history(self) -> None:
        """Send the conversation of the session so far to the client. Updates of a running turn follow."""
        visible_text = visible_text_filter(self.session)
        updates = list(self._encoder.encode_history(self.session.history, visible_text))
        async with self._update_lock:
            for update in updates:
                await self._send(update)

    async def _send(self, update: Wire) -> None:
        await self._connection.notify("session/update", {"sessionId": self.session.id, "update": update})

    # --- prompts ---------------------------------------------------------------------------

    def add_prompt(self, request_id: RequestId) -> Prompt:
        """Register a prompt of the client before its message is sent. Prompts are sent in the order of these calls."""
        prompt = self._last = Prompt(request_id, self._last)
        self._prompts[prompt.message_id] = prompt
        return prompt

    async def answer(self, prompt: Prompt, parts: Sequence[Part]) -> Wire:
        """Send the message of a prompt, wait until it has ended, and return the result of the prompt request.

        Raises:
            RPCError: The message was not accepted, or it failed.
        """
        try:
            if prompt.former is not None:
                await prompt.former.sent.wait()
                prompt.former = None
            if prompt.is_cancelled:
                prompt.end("interrupted")
            elif not prompt.ended.is_set():
                await self._chat(prompt, parts)
            self.ask_for_all()
            await prompt.ended.wait()
        finally:
            prompt.sent.set()
            self._prompts.pop(prompt.message_id, None)
        return prompt.to_result()

    async def _chat(self, prompt: Prompt, parts: Sequence[Part]) -> None:
        try:
            await self.session.chat(parts, message_id=prompt.message_id, metadata={"cwd": self.cwd})
        except ActgentError as error:
            _log.warning("session %s did not accept a prompt: %s", self.session.id, error)
            raise RPCError(INTERNAL_ERROR, public_text(error)) from error
        prompt.sent.set()
        if prompt.is_cancelled:  # while the message was sent
            await self.cancel(prompt)

    async def cancel_all(self) -> None:
        """Interrupt all prompts that have not ended, in the order in which they were sent."""
        for prompt in [*self._prompts.values()]:
            prompt.is_cancelled = True
        for prompt in [*self._prompts.values()]:
            await self.cancel(prompt)

    async def cancel_request(self, request_id: object) -> None:
        """Interrupt the prompt of a client request; do nothing if the prompt has ended."""
        for prompt in [*self._prompts.values()]:
            if prompt.request_id == request_id:
                await self.cancel(prompt)

    async def cancel(self, prompt: Prompt) -> None:
        """Interrupt a prompt. If its message was not sent yet, it is not sent."""
        prompt.is_cancelled = True
        if prompt.sent.is_set():
            try:
                await self.session.interrupt(CANCELLED, message_id=prompt.message_id)
            except (
                JournalError
            ) as error:  # the prompt ends with this error, and further prompts are cancelled
                _log.warning(
                    "the cancellation of a prompt of session %s is not recorded: %s", self.session.id, error
                )

    # --- what happens in the session ---------------------------------------------------------

    async def _receive(self, item: FollowedItem) -> None:
        async with self._update_lock:
            for event in self._read(item):
                for update in self._encoder.encode(event):
                    await self._send(update)
                if isinstance(event, RunSuspended):
                    for approval in event.user_approvals:
                        self._ask(approval)
        record = item.record if isinstance(item, FollowedRecord) else None
        if isinstance(record, MessageEndRecord):
            self._readers.pop(record.message_id, None)
            if (prompt := self._prompts.get(record.message_id)) is not None:
                prompt.end(record.failed, record.error_text)

    def _read(self, item: FollowedItem) -> Sequence[RunEvent]:
        """Convert an item from the session's record stream to run events.

        Each turn has its own `RunReader`, because a message may arrive during another turn.
        """
        if not isinstance(item, FollowedRecord | PartialText):
            return [RunToolProgressed(progress=item)]
        turn = item.turn
        if (reader := self._readers.get(turn)) is None:
            reader = self._readers[turn] = RunReader(
                turn, lambda: self.session.approvals, visible_text_filter(self.session), turn=turn
            )
        events = reader.read(item)
        reader.is_over = False  # a suspended turn continues
        for event in events:
            if isinstance(event, RunEnded) and (prompt := self._prompts.get(turn)) is not None:
                prompt.stop, prompt.usage = event.stop, event.usage
        return events

    # --- approvals -------------------------------------------------------------------------

    def ask_for_all(self) -> None:
        """Ask the client about each open approval for which it was not asked yet, for example after a restart."""
        for approval in self.session.approvals:
            self._ask(approval)

    def _ask(self, approval: Approval) -> None:
        if approval.id not in self._asked:
            self._asked.add(approval.id)
            self._connection.start(self._decide, approval)

    async def _decide(self, approval: Approval) -> None:
        """Ask the client about an approval, and record the decision.

        If the client makes no decision, the tool call continues to wait and the prompts end.
        """
        try:
            decision = await self._request_decision(approval)
        except RPCError as error:
            _log.warning("the client did not decide on tool %s: %s", approval.tool_name, error.text)
            decision = None
        if decision is not None:
            try:
                await self.session.answer(approval, decision, by=self.session.owner)
            except ActgentError as error:  # decided elsewhere, or expired; or its form was not filled in
                _log.warning("the decision on tool %s has no effect: %s", approval.tool_name, error)
            else:
                return
        self._asked.discard(approval.id)
        if any(each.id == approval.id for each in self.session.approvals):
            for prompt in self._prompts.values():
                prompt.end("interrupted")

    async def _request_decision(self, approval: Approval) -> Decision | None:
        is_question = approval.form is not None or not approval.again
        if is_question and self._has_forms:
            return await self._request_form(approval)
        is_form_required = approval.form is not None and bool(approval.form.get("required"))
        result = await self._connection.request(
            "session/request_permission",
            {
                "sessionId": self.session.id,
                "toolCall": {
                    "toolCallId": approval.call_id,
                    "title": question_text(approval),
                    "kind": "other",
                    "status": "pending",
                    "rawInput": dict(approval.arguments),
                },
                # A form with required fields cannot be filled in by a permission.
                "options": [_REJECT] if is_form_required else [_ALLOW, _REJECT],
            },
        )
        outcome = result.get("outcome")
        option = None
        if isinstance(outcome, Mapping) and outcome.get("outcome") == "selected":
            option = outcome.get("optionId")
        if option == _ALLOW["optionId"] and not is_form_required:
            return Approve()
        return Reject("the user has rejected it") if option == _REJECT["optionId"] else None

    async def _request_form(self, approval: Approval) -> Decision | None:
        result = await self._connection.request(
            "elicitation/create",
            {
                "mode": "form",
                "sessionId": self.session.id,
                "toolCallId": approval.call_id,
                "message": question_text(approval),
                "requestedSchema": form_of(approval),
            },
        )
        return decision_of(approval, result.get("action"), result.get("content"))


# --- session updates -------------------------------------------------------------------------


def _visible_parts(message: Message, visible_text: Callable[[str], str]) -> list[Part]:
    """Return the parts of an answer, with the text that the user may read in place of its texts."""
    return [Text(visible_text(message.text)), *(part for part in message.parts if not isinstance(part, Text))]


@attrs.define
class UpdateEncoder:
    """Encoder of the events and messages of one session as ACP session updates."""

    _restarts: int = 0
    """Number of answers whose text was discarded and started again."""
    _discarded: str = ""
    """Id under which the client has a message whose text was discarded. The next chunk gets a new message id."""
    _loaded: set[str] = attrs.field(factory=set)
    """Ids of the messages that were sent to the client as history."""

    def encode_history(
        self, messages: Iterable[Message], visible_text: Callable[[str], str]
    ) -> Iterator[Wire]:
        """Yield the ACP updates that show earlier messages of a session to the client.

        `visible_text` returns the part of an answer that the user may read.
        """
        for message in messages:
            self._loaded.add(message.id)
            kind = message.sender.kind
            if kind in ("user", "assistant"):
                chunk = "user_message_chunk" if kind == "user" else "agent_message_chunk"
                parts = message.parts if kind == "user" else _visible_parts(message, visible_text)
                for block in to_blocks(parts):
                    yield {"sessionUpdate": chunk, "content": block, "messageId": message.id}
            for call in message.tool_calls:
                yield encode_call(call)
            for result in message.tool_results:
                yield _encode_result(result)

    def encode(self, event: RunEvent) -> Iterator[Wire]:
        """Convert an event of a run to ACP updates. Yield nothing if ACP has no counterpart."""
        match event:
            case TextDelta() if event.reply_id not in self._loaded:
                yield self._add_text(event)
            case TextDiscarded():
                self._discarded = self._id_of(event.reply_id)
                self._restarts += 1
            case AnswerDone() if event.reply_id not in self._loaded:
                yield from map(encode_call, event.calls)
            case RunToolProgressed():
                yield _encode_progress(event.progress)
            case RunToolDone():
                yield _encode_result(event.result)

    def _add_text(self, event: TextDelta) -> Wire:
        """Return an ACP update with new text. Text that replaces discarded text begins a new message for the client."""
        chunk: Wire = {
            "sessionUpdate": "agent_message_chunk",
            "content": text_block(event.text),
            "messageId": self._id_of(event.reply_id),
        }
        if self._discarded:
            chunk["_meta"] = {"actgent": {"voided": self._discarded}}
            self._discarded = ""
        return chunk

    def _id_of(self, reply_id: str) -> str:
        return f"{reply_id}-{self._restarts}" if self._restarts else reply_id


def encode_call(call: ToolCall) -> Wire:
    """Encode a tool call that has not run yet as an ACP session update."""
    return {
        "sessionUpdate": "tool_call",
        "toolCallId": call.id,
        "title": call.name,
        "kind": "other",
        "status": "pending",
        "rawInput": call.arguments if isinstance(call.arguments, str) else dict(call.arguments),
    }


def _encode_progress(progress: CallProgress) -> Wire:
    update: Wire = {
        "sessionUpdate": "tool_call_update",
        "toolCallId": progress.call_id,
        "status": "in_progress",
    }
    if progress.text:
        update["content"] = [{"type": "content", "content": text_block(progress.text)}]
    return update


def _encode_result(result: ToolResult) -> Wire:
    """Encode the result of a tool call as an ACP session update.

    Texts of exceptions that user code raised are left out; the agent's log has them.
    """
    is_done = result.status == "success"
    text = result.content
    if not is_done:
        text = tool_error_text(result.status, result.error, result.raised, shows_exception_texts=False)
    blocks = [*([text_block(text)] if text else []), *to_blocks(result.media)]
    return {
        "sessionUpdate": "tool_call_update",
        "toolCallId": result.call_id,
        "status": "completed" if is_done else "failed",
        "content": [{"type": "content", "content": block} for block in blocks],
    }
