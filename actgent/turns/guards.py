"""Guards of an agent: functions that may refuse a message, or refuse an answer or say it in other words.

Those of messages run beside the model call. Its answer, also what of it is there while it grows, is held until they agree,
and a refusal cancels the call. Those of answers run before anybody hears of one, so answers are not shown while they grow.

A decision is written down, so none is made again after a crash. What a guard raises is the turn's failure: nobody hears
of what was not guarded.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar, get_args

import attrs
import trio

from actgent.approvals import Approve, Ask, Expire, Reject, Respond
from actgent.errors import ConfigurationError, GuardRefused, HandlerFailed, nearest
from actgent.journal.records import Guarded
from actgent.messages import Message, Refuse, Reply, Text
from actgent.sessions.context import SessionContext
from actgent.sessions.handlers import Handler, name_of, takes_session
from actgent.sessions.turn import Turn
from actgent.support.foreign import failure_of
from actgent.tools.outputs.results import worded
from actgent.tools.schemas import plain_form

from .calls.approval_requests import Guarding
from .dispatcher import Dispatcher

GuardedKind = Literal["message", "answer", "input"]
T = TypeVar("T")


@attrs.define(eq=False)
class Guards:
    """The guards of one agent, in the order in which they were added. Empty lists cost the turn one look each."""

    messages: list[tuple[Handler, bool]] = attrs.field(factory=list)
    """Each with whether it takes the session."""
    answers: list[tuple[Handler, bool]] = attrs.field(factory=list)
    inputs: list[tuple[Handler, bool]] = attrs.field(factory=list)
    """They look at messages before these are in the inbox and the journal."""

    def add(self, guard: Handler, kind: GuardedKind) -> None:
        """Add a guard.

        Raises:
            ConfigurationError: there is no such kind of them, or one of inputs is async.
        """
        if kind not in get_args(GuardedKind):
            raise ConfigurationError(
                f"on={kind!r} is nothing that is guarded: {nearest(str(kind), get_args(GuardedKind))}"
            )
        added = (guard, takes_session(guard))
        if kind == "message":
            self.messages = [*self.messages, added]
        elif kind == "answer":
            self.answers = [*self.answers, added]
        elif inspect.iscoroutinefunction(guard):
            raise ConfigurationError(
                f"the guard {name_of(guard)} of inputs is async: write a plain function, which decides at once, or take "
                "guard(on='message'), which runs beside the model call"
            )
        else:
            self.inputs = [*self.inputs, added]

    def remove(self, guard: Handler) -> None:
        """Forget a guard of whatever kind; nothing happens if it is none."""
        self.inputs = [entry for entry in self.inputs if entry[0] != guard]
        self.messages = [entry for entry in self.messages if entry[0] != guard]
        self.answers = [entry for entry in self.answers if entry[0] != guard]

    # --- inputs ------------------------------------------------------------------------------

    def admit(self, context: SessionContext, message: Message) -> Message:
        """A message as those of inputs leave it, which is all that the journal and the model ever have of it.

        Raises:
            GuardRefused: one of them refuses.
            HandlerFailed: one of them raised, or returned something else than None, a text or a `Refuse`.
        """
        for guard, with_session in self.inputs:
            try:
                said = guard(message, context.face) if with_session else guard(message)
            except BaseException as raised:  # noqa: BLE001 - the edge to foreign code
                error = failure_of(raised, "guard", name_of(guard))
                raise HandlerFailed(name_of(guard), worded(error)) from error  # noqa: ASYNC104 - no cancellation any more
            if isinstance(said, Refuse):
                raise GuardRefused(name_of(guard), said.reason)
            if isinstance(said, str):
                message = _said_instead(message, said)
            elif said is not None:
                raise HandlerFailed(
                    name_of(guard),
                    f"it returned {said!r:.100}, but a guard of inputs returns None, a text or Refuse",
                )
        return message

    # --- messages ----------------------------------------------------------------------------

    async def ask_beside(
        self, context: SessionContext, turn: Turn, dispatcher: Dispatcher, ask: Callable[[], Awaitable[T]]
    ) -> T:
        """Have the model asked while the guards look at the messages of the turn.

        Raises:
            GuardRefused: one of them refuses, now or before a restart.
            HandlerFailed: one of them failed.
            ActgentError: the call failed.
        """
        known = _known(turn, "")
        if known is not None:
            _check(known)
            return await ask()
        looking = _Looking(self, context, turn, dispatcher)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(looking.look)
            result = await looking.call(ask)
            nursery.cancel_scope.cancel()
        turn.answer.gate = None
        if looking.error is not None:
            turn.answer.growth = None
            if isinstance(looking.error, PersonNeeded):
                raise looking.error
            turn.control.blame = "guard"
            await _keep_refusal(context, turn, looking.error)
            raise looking.error
        turn.check()
        return result()

    async def judge_messages(self, context: SessionContext, turn: Turn, dispatcher: Dispatcher) -> None:
        """Ask all guards about the messages that a turn answers.

        Raises:
            GuardRefused: one of them refuses.
            HandlerFailed: one of them failed, or returned something else than None or a `Refuse`.
        """
        for message in (*turn.joined, turn.message):
            if message.sender.kind != "system":
                for guard, with_session in self.messages:
                    said = await dispatcher.judge(context, guard, message, takes_session=with_session)
                    if isinstance(said, Ask):
                        said = _decided(context, guard, message, said)
                    if isinstance(said, Refuse):
                        raise GuardRefused(name_of(guard), said.reason)
                    if said is not None:
                        raise dispatcher.unusable(
                            guard, said, "a guard of messages returns None, Ask(question) or Refuse(reason)"
                        )

    # --- answers -----------------------------------------------------------------------------

    async def check_answer(
        self, context: SessionContext, turn: Turn, reply: Reply, dispatcher: Dispatcher
    ) -> Reply:
        """The answer as the guards leave it.

        Raises:
            GuardRefused: one of them refuses, now or before a restart.
            HandlerFailed: one of them failed.
        """
        known = _known(turn, reply.id)
        if known is None:
            known = await self._judge_answer(context, turn, reply, dispatcher)
            if context.log is not None:
                context.log.add(known)
                await context.log.flush()
        _check(known)
        return reply if known.text is None else attrs.evolve(reply, text=known.text)

    async def _judge_answer(
        self, context: SessionContext, turn: Turn, reply: Reply, dispatcher: Dispatcher
    ) -> Guarded:
        text: str | None = None
        for guard, with_session in self.answers:
            said = await dispatcher.judge(context, guard, reply, takes_session=with_session)
            if isinstance(said, Ask):
                said = _decided(context, guard, reply, said)
            if isinstance(said, Refuse):
                return Guarded(
                    message_id=turn.message.id, answer=reply.id, guard=name_of(guard), refused=said.reason
                )
            if isinstance(said, str):
                text, reply = said, attrs.evolve(reply, text=said)
            elif said is not None:
                raise dispatcher.unusable(
                    guard, said, "a guard of answers returns None, a text, Ask(question) or Refuse(reason)"
                )
        return Guarded(message_id=turn.message.id, answer=reply.id, text=text)


@attrs.define(eq=False)
class _Looking:
    """Guards at work beside a model call."""

    _guards: Guards
    _context: SessionContext
    _turn: Turn
    _dispatcher: Dispatcher
    error: Exception | None = None
    """Why the answer is not to be heard."""
    _calling: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def __attrs_post_init__(self) -> None:
        self._turn.answer.gate = trio.Event()

    async def look(self) -> None:
        try:
            await self._guards.judge_messages(self._context, self._turn, self._dispatcher)
        except Exception as error:  # noqa: BLE001 - it is raised where the call is waited for
            self.error = error
            self._calling.cancel()
            return
        if (log := self._context.log) is not None:
            log.add(Guarded(message_id=self._turn.message.id))
            log.flush_soon()
        if (gate := self._turn.answer.gate) is not None:
            gate.set()

    async def call(self, ask: Callable[[], Awaitable[T]]) -> Callable[[], T]:
        """Ask the model; what is returned gives the answer, or raises what the call raised."""
        found: list[T] = []
        failed: list[Exception] = []
        with self._calling:
            try:
                found.append(await ask())
            except Exception as error:  # noqa: BLE001 - it is raised outside of the nursery, which would wrap it
                failed.append(error)

        def result() -> T:
            if failed:
                raise failed[0]
            return found[0]

        return result


class PersonNeeded(Exception):
    """A guard wants a person to decide, and nobody has decided yet."""

    def __init__(self, asked: Guarding) -> None:
        super().__init__(asked.guard)
        self.asked = asked


def _decided(
    context: SessionContext, guard: Handler, about: Message | Reply, ask: Ask
) -> Refuse | str | None:
    """Return what a person has decided about a message or an answer; a text is said instead of an answer.

    Raises:
        PersonNeeded: nobody has.
        HandlerFailed: its form is none that people can be asked to fill in.
    """
    asked = Guarding(
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
        raise PersonNeeded(attrs.evolve(asked, ask=ask))
    match verdict.decision:
        case Approve():
            return None
        case Respond(content) if not asked.is_message:
            return str(content)
        case Reject(reason) | Respond(reason):
            return Refuse(str(reason) or "a person refused it")
        case Expire():
            return Refuse("nobody approved it in time")
    return Refuse("it was withdrawn")


def _said_instead(message: Message, text: str) -> Message:
    """A message with another text; pictures and files stay."""
    others = tuple(part for part in message.parts if not isinstance(part, Text))
    if not (text.strip() or others):
        text = "[removed]"  # no model answers a message without anything
    return attrs.evolve(message, parts=(Text(text), *others) if text.strip() else others)


def _known(turn: Turn, answer: str) -> Guarded | None:
    """Return what was decided before a restart; an empty id is of the messages."""
    return None if turn.checkpoint is None else turn.checkpoint.guarded.get(answer)


def _check(decided: Guarded) -> None:
    if decided.refused is not None:
        raise GuardRefused(decided.guard, decided.refused)


async def _keep_refusal(context: SessionContext, turn: Turn, error: Exception) -> None:
    if context.log is not None and isinstance(error, GuardRefused):
        context.log.add(Guarded(message_id=turn.message.id, guard=error.guard, refused=error.reason))
        await context.log.flush()
