"""A model call of a turn: within its limits and its time, with its answer in the record."""

import time
from collections.abc import Mapping
from functools import partial

import attrs
import trio

from actgent.actors.timer import Timer
from actgent.control.limits import DEFAULT_MODEL_CALLS
from actgent.errors import BadRequest, LimitReached, ModelTimeout
from actgent.journal.records import Said, make_said
from actgent.llm.base import LLM, Answer, Chat, OnText
from actgent.llm.client_errors import as_model_error
from actgent.llm.overflow import is_too_long
from actgent.llm.spans import complete_as_span
from actgent.messages import (
    NO_USAGE,
    Message,
    Part,
    Sender,
    Text,
    ToolCall,
    Usage,
    make_message,
    new_id,
)
from actgent.sessions.context import SessionContext
from actgent.sessions.turn import Turn
from actgent.support.foreign import failure_of
from actgent.turns.dispatcher import Dispatcher
from actgent.turns.guards import Guards
from actgent.turns.observer import Observer

from .answers import check_answer
from .fitting import Assemble, ContextFitter, overflow_of
from .spending import Spending
from .streaming import AnswerStream


@attrs.define(eq=False, kw_only=True)
class ModelCaller:
    """Asks the models of one agent."""

    sender: Sender
    """The agent as the speaker of its answers."""
    models: Mapping[str, LLM]
    dispatcher: Dispatcher
    observer: Observer
    timer: Timer
    spending: Spending = attrs.field(factory=Spending)
    guards: Guards = attrs.field(factory=Guards)
    fitter: ContextFitter | None = None
    """Fits requests into the windows of models; None where no model has one, and none can say that a request is too long."""

    async def ask_fitting(
        self,
        context: SessionContext,
        turn: Turn,
        message: Message,
        chat: Chat,
        assemble: Assemble,
        *,
        model: str,
        prompt: str,
    ) -> tuple[Answer, tuple[ToolCall, ...]]:
        """`ask`, with a request that fits; one that its provider finds too long all the same is cut once, and sent again.

        Raises:
            ContextOverflow: it does not fit, whatever is left out.
        """
        fitter = self.fitter or ContextFitter()
        llm = self.models.get(model) or self.models["default"]
        chat = await fitter.fit(context, turn, llm, chat, assemble)
        try:
            answered = await self.ask(context, turn, message, chat, model=model, prompt=prompt)
        except BadRequest as error:
            if (
                not is_too_long(error)
                or (shorter := fitter.compact(context, turn, llm, chat, assemble)) is None
            ):
                raise
        else:
            fitter.note(context, llm, chat, answered[0])
            return answered
        self.check_limit(context, turn)
        turn.control.blame = "internal"
        try:
            answered = await self.ask(context, turn, message, shorter, model=model, prompt=prompt)
        except BadRequest as error:
            if is_too_long(error):
                raise overflow_of(llm, shorter, error) from error
            raise
        fitter.note(context, llm, shorter, answered[0])
        return answered

    async def ask(
        self, context: SessionContext, turn: Turn, message: Message, chat: Chat, *, model: str, prompt: str
    ) -> tuple[Answer, tuple[ToolCall, ...]]:
        """One model call: the answer as the record has it by then, and its calls under the ids they have there.

        `model` is the role of the model to ask, and `prompt` the fingerprint that the journal keeps.
        """
        llm = self.models.get(model) or self.models["default"]
        growing = turn.answer
        growing.id = new_id()
        started = time.monotonic()
        if context.log is not None or self.observer.stream.active:
            chat.watch = self.observer.watch_call(context, message, llm.name)
        answer = await self._complete(context, turn, llm, chat)
        first_at = growing.first_at
        growing.growth = growing.first_at = None
        calls = self._remember_answer(context, turn, message, answer, chat, prompt=prompt, started=started)
        growing.fitting = None
        if answer.usage is not NO_USAGE:
            _count_usage(context, turn, answer.usage)
        for listener in turn.listeners:
            listener.take_answer(answer)
        if self.observer.stream.active:
            self.observer.take_answer(context, message, answer, started, first_at)
        return answer, calls

    def check_limit(self, context: SessionContext, turn: Turn) -> None:
        """Check the limit of the protocol, or the default limit if neither the protocol nor `Limits(model_calls=)` has one.

        The budget of the turn checks `Limits(model_calls=)` itself, so the smaller of the two limits counts.

        Raises:
            LimitReached: The turn has made as many model calls as the limit allows.
        """
        protocol = turn.options.protocol
        argument = ""
        if protocol.max_iterations is not None:
            limit = protocol.max_iterations
            argument = protocol.limit_argument or f"{type(protocol).__name__}.max_iterations"
        elif turn.limits.model_calls is None:
            limit = DEFAULT_MODEL_CALLS
        else:
            return
        if turn.progress.calls >= limit:
            raise LimitReached(
                "model calls",
                limit,
                field="model_calls",
                used={"model_calls": turn.progress.calls},
                agent=self.sender.name,
                session_id=context.id,
                argument=argument,
            )

    async def _complete(self, context: SessionContext, turn: Turn, llm: LLM, chat: Chat) -> Answer:
        """The call itself, under its timeout and within reach of an interruption."""
        growing = on_text = None
        listeners = turn.listeners
        is_heard = (listeners and turn.is_heard()) or context.handlers.of("token")
        if is_heard and not self.guards.answers:  # or it would be heard before they agree
            growing = AnswerStream(self.dispatcher, context, turn)
            on_text = growing.add
        control = turn.control
        control.expose()
        deadline = self.timer.now() + turn.limits.model_timeout
        handle = self.timer.call_at(deadline, partial(self._time_out, context, turn, llm))
        chat.deadline = min(deadline, turn.deadline()) if listeners or control.timer else deadline
        if (gate := turn.answer.gate) is not None and on_text is not None:
            on_text = partial(_show_later, gate, on_text)
        try:
            if turn.budget is None:
                turn.progress.calls += 1
                answer = await (
                    llm.complete(chat, on_text=on_text)
                    if self.observer.spans is None
                    else complete_as_span(llm, chat, on_text=on_text)
                )
                if type(answer) is not Answer:
                    answer = check_answer(answer, llm)
            else:
                answer = await self.spending.complete(turn, turn.budget, llm, chat, on_text=on_text)
            if gate is not None:
                await gate.wait()
            if growing is not None:
                await growing.finish(answer.text)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - one handler: a cancellation pays for each
            control.cover()
            handle.cancel()
            error = as_model_error(failure_of(raised, "model", llm.name), llm.name)
            self.observer.fail_call(chat.watch, llm.name, error)
        else:
            control.cover()
            handle.cancel()
            if control.stop is not None:
                turn.check()
            return answer
        control.blame = "model"
        raise error

    def _time_out(self, context: SessionContext, turn: Turn, llm: LLM) -> None:
        text = f"no answer within {turn.limits.model_timeout:g} s"
        if waited := _waited(llm, context.id):
            text += f": it still waited for the provider's rate limit, after {waited:.1f} s"
        turn.stop_with(ModelTimeout(text, model=llm.name))

    def keep_partial(self, context: SessionContext, turn: Turn) -> None:
        """Keep the text of an answer that was cut in the conversation, marked as cut."""
        growth, turn.answer.growth, turn.answer.first_at = turn.answer.growth, None, None
        if growth is not None and (text := growth.text.read()):
            parts = (Text(text),)
            said = self._said(context, turn, parts, turn.message, cut=True)
            context.conversation.append(said)
            if context.log is not None:
                context.log.add(Said(message=said, calls=turn.progress.calls))

    def _remember_answer(
        self,
        context: SessionContext,
        turn: Turn,
        message: Message,
        answer: Answer,
        chat: Chat,
        *,
        prompt: str,
        started: float,
    ) -> tuple[ToolCall, ...]:
        """Write the answer into the record; returns its calls, under ids that are unique in the session."""
        cut = answer.stop == "length"
        parts, calls = context.conversation.with_own_calls(answer.parts)
        if cut:
            calls = ()
        said = self._said(context, turn, parts, message, cut=cut)
        context.conversation.append(said)
        if context.log is not None:
            context.log.add(
                make_said(
                    message=said,
                    stop=answer.stop,
                    usage=_written(context, answer),
                    model=answer.model,
                    calls=turn.progress.calls,
                    repairs=turn.progress.repairs,
                    prompt=prompt,
                    seconds=time.monotonic() - started,
                    waited=0.0 if chat.watch is None else chat.watch.waited,
                    fitting=turn.answer.fitting,
                )
            )
        context.conversation.open_calls = calls
        return calls

    def _said(
        self, context: SessionContext, turn: Turn, parts: tuple[Part, ...], to: Message, *, cut: bool
    ) -> Message:
        return make_message(
            id=turn.answer.id,
            session_id=context.id,
            sender=self.sender,
            parts=parts,
            correlation_id=to.correlation_id or to.id,
            causation_id=to.id,
            cut=cut,
            metadata=turn.answer.metadata,
            origin=context.conversation.origin,
        )


async def _show_later(gate: trio.Event, show: OnText, text: str, attempt: int) -> None:
    """Show a piece of an answer as soon as guards agree; the model's stream waits for that."""
    await gate.wait()
    await show(text, attempt)


def _count_usage(context: SessionContext, turn: Turn, usage: Usage) -> None:
    turn.progress.usage += usage
    context.conversation.usage += usage
    if context.parent is not None:
        tell_parents(context, usage)


def tell_parents(context: SessionContext, usage: Usage) -> None:
    """Count what a session took for those that it works for, too."""
    parent = context.parent
    while parent is not None:
        parent.conversation.add_child_usage(usage)
        if parent.turn is not None:
            parent.turn.progress.usage = parent.turn.progress.usage.with_child(usage)
        parent = parent.parent


def _written(context: SessionContext, answer: Answer) -> Usage:
    """Return what the record of an answer says that was taken."""
    if context.conversation.unwritten is None:
        return answer.usage
    return answer.usage + context.conversation.take_unwritten()


def _waited(llm: LLM, session_id: str) -> float:
    """Seconds for which a call has waited for the provider's limits; 0 where the model cannot say."""
    try:
        return llm.waited(session_id)
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code, in the task of all timers
        failure_of(raised, "model", llm.name)
    return 0.0
