"""Guards of an agent: functions that may refuse a message, or refuse an answer or say it in other words.

Those of messages run beside the model call. Its answer, also what of it is there while it grows, is held until they agree,
and a refusal cancels the call. Those of answers run before anybody hears of one, so answers are not shown while they grow.

A decision is written down, so none is made again after a crash. What a guard raises is the turn's failure: nobody hears
of what was not guarded.
"""

from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar, get_args

import attrs
import trio

from actgent.errors import ConfigurationError, GuardRefused, nearest
from actgent.journal.records import Guarded
from actgent.messages import Refuse, Reply
from actgent.sessions.context import SessionContext
from actgent.sessions.handlers import Handler, name_of, takes_session
from actgent.sessions.turn import Turn

from .dispatcher import Dispatcher

GuardedKind = Literal["message", "answer"]
T = TypeVar("T")


@attrs.define(eq=False)
class Guards:
    """The guards of one agent, in the order in which they were added. Empty lists cost the turn one look each."""

    messages: list[tuple[Handler, bool]] = attrs.field(factory=list)
    """Each with whether it takes the session."""
    answers: list[tuple[Handler, bool]] = attrs.field(factory=list)

    def add(self, guard: Handler, kind: GuardedKind) -> None:
        """Add a guard.

        Raises:
            ConfigurationError: there is no such kind of them.
        """
        if kind not in get_args(GuardedKind):
            raise ConfigurationError(
                f"on={kind!r} is nothing that is guarded: {nearest(str(kind), get_args(GuardedKind))}"
            )
        added = (guard, takes_session(guard))
        if kind == "message":
            self.messages = [*self.messages, added]
        else:
            self.answers = [*self.answers, added]

    def remove(self, guard: Handler) -> None:
        """Forget a guard of either kind; nothing happens if it is none."""
        self.messages = [entry for entry in self.messages if entry[0] != guard]
        self.answers = [entry for entry in self.answers if entry[0] != guard]

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
                    if isinstance(said, Refuse):
                        raise GuardRefused(name_of(guard), said.reason)
                    if said is not None:
                        raise dispatcher.unusable(
                            guard, said, "a guard of messages returns None or Refuse(reason)"
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
            if isinstance(said, Refuse):
                return Guarded(
                    message_id=turn.message.id, answer=reply.id, guard=name_of(guard), refused=said.reason
                )
            if isinstance(said, str):
                text, reply = said, attrs.evolve(reply, text=said)
            elif said is not None:
                raise dispatcher.unusable(
                    guard, said, "a guard of answers returns None, a text or Refuse(reason)"
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


def _known(turn: Turn, answer: str) -> Guarded | None:
    """What was decided before a restart; an empty id is of the messages."""
    return None if turn.checkpoint is None else turn.checkpoint.guarded.get(answer)


def _check(decided: Guarded) -> None:
    if decided.refused is not None:
        raise GuardRefused(decided.guard, decided.refused)


async def _keep_refusal(context: SessionContext, turn: Turn, error: Exception) -> None:
    if context.log is not None and isinstance(error, GuardRefused):
        context.log.add(Guarded(message_id=turn.message.id, guard=error.guard, refused=error.reason))
        await context.log.flush()
