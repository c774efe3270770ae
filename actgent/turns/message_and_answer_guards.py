"""Guards of an agent: functions that check, reject or rewrite messages and answers.

Message guards run concurrently with the model call. The answer and its deltas are delivered only after the guards accept the
message; a rejection cancels the call. Answer guards check a complete answer before it is delivered, so agents with answer guards
do not stream.

Decisions are recorded, so guards do not decide again after a crash. An error in a guard fails the turn, so no unchecked answer
is delivered.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar, get_args

import attrs
import trio

from actgent.approvals import ApprovalRequest, Approve, Expire, Reject, Respond
from actgent.errors import ConfigurationError, GuardrailTripped, HandlerFailed, did_you_mean_or_list
from actgent.journal.record_types import GuardDecisionRecord
from actgent.messages import Message, Refuse, Reply, Text
from actgent.sessions.session_context import SessionContext, Turn
from actgent.sessions.session_handlers import Handler, name_of, takes_session
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.user_code_calls import convert_user_error
from actgent.tools.outputs.result_text import error_text
from actgent.tools.schemas import plain_form

from .calls.approval_requests import GuardApproval
from .outcome_dispatcher import Dispatcher

GuardedKind = Literal["message", "answer", "input"]
T = TypeVar("T")


@attrs.define(eq=False, repr=False)
class Guards(FieldRepr):
    """Guards of one agent, in the order in which they were added."""

    messages: list[tuple[Handler, bool]] = attrs.field(factory=list)
    """Message guards, each with True if it takes the session as its second argument."""
    answers: list[tuple[Handler, bool]] = attrs.field(factory=list)
    inputs: list[tuple[Handler, bool]] = attrs.field(factory=list)
    """Input guards, which check messages before inbox and journal, each with True if it takes the session as second argument."""

    def add(self, guard: Handler, kind: GuardedKind) -> None:
        """Register a guard for messages, answers or inputs.

        Raises:
            ConfigurationError: The kind is unknown, or an input guard is async.
        """
        if kind not in get_args(GuardedKind):
            raise ConfigurationError(
                f"on={kind!r} is not one of the kinds of guards: {did_you_mean_or_list(str(kind), get_args(GuardedKind))}"
            )
        added = (guard, takes_session(guard))
        if kind == "message":
            self.messages = [*self.messages, added]
        elif kind == "answer":
            self.answers = [*self.answers, added]
        elif inspect.iscoroutinefunction(guard):
            raise ConfigurationError(
                f"the input guard {name_of(guard)} must not be async: write a sync function, which decides at once, or use "
                "guard(on='message'), which runs concurrently with the model call"
            )
        else:
            self.inputs = [*self.inputs, added]

    def remove(self, guard: Handler) -> None:
        """Remove a guard from all kinds; unknown guards are ignored."""
        self.inputs = [entry for entry in self.inputs if entry[0] != guard]
        self.messages = [entry for entry in self.messages if entry[0] != guard]
        self.answers = [entry for entry in self.answers if entry[0] != guard]

    # --- inputs ------------------------------------------------------------------------------

    def check_input(self, context: SessionContext, message: Message) -> Message:
        """Check a message with the input guards before it is accepted. Return it, possibly with another text.

        Only the returned message is recorded and sent to the model.

        Raises:
            GuardrailTripped: A guard rejected the message.
            HandlerFailed: A guard raised an error, or returned something other than None, a string or a `Refuse`.
        """
        for guard, with_session in self.inputs:
            try:
                verdict = guard(message, context.public_session) if with_session else guard(message)
            except BaseException as raised:  # noqa: BLE001 - the edge to foreign code
                error = convert_user_error(raised, "guard", name_of(guard))
                raise HandlerFailed(name_of(guard), error_text(error)) from error  # noqa: ASYNC104 - convert_user_error has re-raised cancellations
            if isinstance(verdict, Refuse):
                raise GuardrailTripped(name_of(guard), verdict.reason)
            if isinstance(verdict, str):
                message = _with_text(message, verdict)
            elif verdict is not None:
                raise HandlerFailed(
                    name_of(guard),
                    f"it returned {verdict!r:.100}, but an input guard must return None, a string or Refuse(reason)",
                )
        return message

    # --- messages ----------------------------------------------------------------------------

    async def ask_while_checking(
        self, turn: Turn, dispatcher: Dispatcher, ask: Callable[[], Awaitable[T]]
    ) -> T:
        """Call the model while the message guards check the turn's messages. Return the answer if all guards accept.

        A rejection cancels the call. Messages that were accepted before a restart are not checked again.

        Raises:
            ApprovalNeeded: A guard requires an approval that is not decided yet.
            GuardrailTripped: A guard rejected a message, in this process or before a restart.
            HandlerFailed: A guard failed.
            ActgentError: The model call failed.
        """
        known = _recorded_decision(turn, "")
        if known is not None:
            _check(known)
            return await ask()
        checks = _RunningGuards(self, turn, dispatcher)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(checks.run)
            result = await checks.call(ask)
            nursery.cancel_scope.cancel()
        turn.gate = None
        if checks.error is not None:
            turn.growth = None
            if isinstance(checks.error, ApprovalNeeded):
                raise checks.error
            turn.blame = "guard"
            await _record_rejection(turn, checks.error)
            raise checks.error
        turn.check()
        return result()

    async def judge_messages(self, turn: Turn, dispatcher: Dispatcher) -> None:
        """Check the messages that a turn answers with all message guards, except system messages.

        Raises:
            ApprovalNeeded: A guard requires an approval that is not decided yet.
            GuardrailTripped: A guard rejected a message, or its approval was rejected.
            HandlerFailed: A guard failed, or returned something other than None, an `ApprovalRequest` or a `Refuse`.
        """
        context = turn.session
        for message in (*turn.joined, turn.message):
            if message.sender.kind != "system":
                for guard, with_session in self.messages:
                    verdict = await dispatcher.judge(context, guard, message, takes_session=with_session)
                    if isinstance(verdict, ApprovalRequest):
                        verdict = _find_decision(context, guard, message, verdict)
                    if isinstance(verdict, Refuse):
                        raise GuardrailTripped(name_of(guard), verdict.reason)
                    if verdict is not None:
                        raise dispatcher.unusable(
                            guard,
                            verdict,
                            "a guard of messages must return None, ApprovalRequest(question) or Refuse(reason)",
                        )

    # --- answers -----------------------------------------------------------------------------

    async def check_answer(self, turn: Turn, reply: Reply, dispatcher: Dispatcher) -> Reply:
        """Check a reply with the answer guards, and record their decision. Return the reply, possibly rewritten.

        Raises:
            GuardrailTripped: A guard rejected the answer, in this process or before a restart.
            HandlerFailed: A guard failed.
        """
        context = turn.session
        known = _recorded_decision(turn, reply.id)
        if known is None:
            known = await self._judge_answer(turn, reply, dispatcher)
            if context.log is not None:
                context.log.add(known)
                await context.log.flush()
        _check(known)
        return reply if known.text is None else attrs.evolve(reply, text=known.text)

    async def _judge_answer(self, turn: Turn, reply: Reply, dispatcher: Dispatcher) -> GuardDecisionRecord:
        context = turn.session
        text: str | None = None
        for guard, with_session in self.answers:
            verdict = await dispatcher.judge(context, guard, reply, takes_session=with_session)
            if isinstance(verdict, ApprovalRequest):
                verdict = _find_decision(context, guard, reply, verdict)
            if isinstance(verdict, Refuse):
                return GuardDecisionRecord(
                    message_id=turn.message.id, answer=reply.id, guard=name_of(guard), refused=verdict.reason
                )
            if isinstance(verdict, str):
                text, reply = verdict, attrs.evolve(reply, text=verdict)
            elif verdict is not None:
                raise dispatcher.unusable(
                    guard,
                    verdict,
                    "a guard of answers must return None, a string, ApprovalRequest(question) or Refuse(reason)",
                )
        return GuardDecisionRecord(message_id=turn.message.id, answer=reply.id, text=text)


@attrs.define(eq=False, repr=False)
class _RunningGuards(FieldRepr):
    """Message guards that run concurrently with a model call."""

    _guards: Guards
    _turn: Turn
    _dispatcher: Dispatcher
    error: Exception | None = None
    """Error with which a guard rejected the messages; None if no guard has rejected them so far."""
    _calling: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def __attrs_post_init__(self) -> None:
        self._turn.gate = trio.Event()

    async def run(self) -> None:
        try:
            await self._guards.judge_messages(self._turn, self._dispatcher)
        except Exception as error:  # noqa: BLE001 - raised again in the task that waits for the call
            self.error = error
            self._calling.cancel()
            return
        if (log := self._turn.session.log) is not None:
            log.add(GuardDecisionRecord(message_id=self._turn.message.id))
            log.flush_soon()
        if (gate := self._turn.gate) is not None:
            gate.set()

    async def call(self, ask: Callable[[], Awaitable[T]]) -> Callable[[], T]:
        """Call the model until it answers or a guard rejects the message.

        Return a function that returns the answer or raises the error of the call. The error is not raised here, because the
        nursery of the guards would wrap it in an exception group.
        """
        found: list[T] = []
        failed: list[Exception] = []
        with self._calling:
            try:
                found.append(await ask())
            except Exception as error:  # noqa: BLE001 - raised again below, out of the nursery's exception group
                failed.append(error)

        def result() -> T:
            if failed:
                raise failed[0]
            return found[0]

        return result


class ApprovalNeeded(Exception):
    """A guard requires an approval that is not decided yet."""

    def __init__(self, asked: GuardApproval) -> None:
        super().__init__(asked.guard)
        self.asked = asked


def _find_decision(
    context: SessionContext, guard: Handler, about: Message | Reply, ask: ApprovalRequest
) -> Refuse | str | None:
    """Return the decision of the approval that a guard requests: None accepts the text, a string replaces it, `Refuse` rejects it.

    Only the text of an answer can be replaced. An expired or withdrawn approval rejects the text.

    Raises:
        ApprovalNeeded: The approval is not decided yet.
        HandlerFailed: The form of the question is invalid.
    """
    asked = GuardApproval(
        guard=name_of(guard),
        subject=about.id,
        text=about.text,
        ask=ask,
        is_message=isinstance(about, Message),
    )
    verdict = None if context.approvals is None else context.approvals.verdict(asked.call_id)
    if verdict is None:
        try:
            ask = attrs.evolve(ask, form=plain_form(ask.form, owner="its question"))
        except ConfigurationError as error:
            raise HandlerFailed(name_of(guard), str(error)) from error
        raise ApprovalNeeded(attrs.evolve(asked, ask=ask))
    match verdict.decision:
        case Approve():
            return None
        case Respond(content) if not asked.is_message:
            return str(content)
        case Reject(reason) | Respond(reason):
            return Refuse(str(reason) or "the approver rejected it")
        case Expire():
            return Refuse("it was not approved in time")
    return Refuse("its approval was withdrawn")


def _with_text(message: Message, text: str) -> Message:
    """Return a copy of a message with another text, and with the same pictures and files."""
    others = tuple(part for part in message.parts if not isinstance(part, Text))
    if not (text.strip() or others):
        text = "[removed]"  # providers reject empty messages
    return attrs.evolve(message, parts=(Text(text), *others) if text.strip() else others)


def _recorded_decision(turn: Turn, answer: str) -> GuardDecisionRecord | None:
    """Return the decision of the guards that was recorded before a restart; None if there is none.

    `answer` is the id of the checked answer. If it is empty, return the decision about the messages of the turn.
    """
    return None if turn.checkpoint is None else turn.checkpoint.guarded.get(answer)


def _check(decided: GuardDecisionRecord) -> None:
    """Raise `GuardrailTripped` if the recorded decision is a rejection."""
    if decided.refused is not None:
        raise GuardrailTripped(decided.guard, decided.refused)


async def _record_rejection(turn: Turn, error: Exception) -> None:
    """Record that the message guards rejected the messages of a turn, if `error` is their rejection."""
    context = turn.session
    if context.log is not None and isinstance(error, GuardrailTripped):
        context.log.add(
            GuardDecisionRecord(message_id=turn.message.id, guard=error.guard, refused=error.reason)
        )
        await context.log.flush()
