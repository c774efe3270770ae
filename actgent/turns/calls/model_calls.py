"""Model calls of a turn: limits, timeout, streaming, and the record of the answer in the conversation."""

import time
from collections.abc import Mapping
from functools import partial

import attrs
import trio

from actgent.actors.deadline_timer import Timer
from actgent.errors import BadRequest, LimitReached, ModelTimeout
from actgent.journal.record_types import AgentMessageRecord, make_agent_message_record
from actgent.limits_and_schedules.limits import DEFAULT_MODEL_CALLS
from actgent.llm.context_overflow_errors import is_too_long
from actgent.llm.custom_model_errors import as_model_error
from actgent.llm.model_call_spans import complete_as_span
from actgent.llm.model_interface import (
    LLM,
    CallWatch,
    ModelRequest,
    ModelResponse,
    OnText,
    StopReason,
    check_answer,
)
from actgent.messages import (
    NO_USAGE,
    Message,
    Part,
    Sender,
    Text,
    ToolCall,
    Usage,
    make_message,
    make_token,
    new_id,
)
from actgent.sessions.session_context import SessionContext, Turn
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.user_code_calls import convert_user_error
from actgent.turns.message_and_answer_guards import Guards
from actgent.turns.outcome_dispatcher import Dispatcher
from actgent.turns.turn_event_publisher import Observer

from .budgeted_model_calls import MeteredModelCaller
from .context_window_fitting import Assemble, ContextFitter, overflow_of


@attrs.define(eq=False, repr=False)
class AnswerStream(FieldRepr):
    """Receiver of one streamed model answer. It emits the part of the text that the protocol shows to users."""

    _dispatcher: Dispatcher
    _turn: Turn
    _attempt: int = 0

    async def add(self, text: str, attempt: int) -> None:
        """Process the next text delta of a streamed answer: pass it to waiting callers, and emit the part for users as tokens.

        `attempt` is the number of the model call. A new number discards the text of earlier attempts.
        """
        turn = self._turn
        if attempt != self._attempt or turn.growth is None:
            self._attempt, turn.growth = attempt, turn.options.protocol.partial_answer()
            turn.first_at = time.monotonic()
        for listener in turn.listeners:
            await listener.receive_partial(text, attempt)
        delta = turn.growth.add(text)
        for attached in turn.session.handlers.get("growing", ()):
            attached.handler(self._attempt)
        if delta:
            await self._show(delta)

    async def finish(self, text: str) -> None:
        """Emit the remaining text for users at the end of the answer. `text` is the complete answer.

        Do nothing if the model did not stream the whole answer.
        """
        growth = self._turn.growth
        if growth is not None and growth.text.size == len(text) and (delta := growth.finish()):
            await self._show(delta)

    async def _show(self, delta: str) -> None:
        """Emit text for users as a token, after waiting for slow stream readers."""
        turn = self._turn
        for listener in turn.listeners:
            await listener.wait_capacity()
            turn.check()
        turn.cover()  # an interruption waits for the handler
        await self._dispatcher.dispatch(turn.session, make_token(delta, turn.answer_id, self._attempt))
        turn.expose()


@attrs.define(eq=False, kw_only=True, repr=False)
class ModelCaller(FieldRepr):
    """Calls one agent's models with limits, timeout and streaming, and records the answers in the conversation."""

    sender: Sender
    """Sender of the recorded answers: the agent's name with the kind assistant."""
    models: Mapping[str, LLM]
    dispatcher: Dispatcher
    observer: Observer
    timer: Timer
    metered: MeteredModelCaller = attrs.field(factory=MeteredModelCaller)
    guards: Guards = attrs.field(factory=Guards)
    fitter: ContextFitter | None = None
    """Fitter that shortens requests to the models' context windows; None if no model needs it."""

    async def ask_fitting(
        self, turn: Turn, message: Message, chat: ModelRequest, assemble: Assemble, *, model: str, prompt: str
    ) -> tuple[ModelResponse, tuple[ToolCall, ...]]:
        """Shorten a request to the context window of the model, and call the model.

        If the provider rejects the request as too long, shorten it and retry once. `assemble` returns the
        messages again after the memory view was shortened. The other arguments are those of `ask`.

        Raises:
            ContextOverflow: The request does not fit, even when shortened.
        """
        context = turn.session
        fitter = self.fitter or ContextFitter()
        llm = self.models.get(model) or self.models["default"]
        chat = await fitter.fit(turn, llm, chat, assemble)
        try:
            answered = await self.ask(turn, message, chat, model, prompt)
        except BadRequest as error:
            if not is_too_long(error) or (shorter := fitter.compact(turn, llm, chat, assemble)) is None:
                raise
        else:
            fitter.note(context, llm, chat, answered[0])
            return answered
        self.check_limit(turn)
        turn.blame = "internal"
        try:
            answered = await self.ask(turn, message, shorter, model, prompt)
        except BadRequest as error:
            if is_too_long(error):
                raise overflow_of(llm, shorter, error) from error
            raise
        fitter.note(context, llm, shorter, answered[0])
        return answered

    async def ask(
        self, turn: Turn, message: Message, chat: ModelRequest, model: str, prompt: str
    ) -> tuple[ModelResponse, tuple[ToolCall, ...]]:
        """Call the model once, for at most `model_timeout` seconds, and record the answer.

        Return the answer, and its tool calls with unique ids.

        `model` is the role of the model, such as `default`; an unknown role uses the default model. `prompt`
        is the checksum of the system prompt for the journal.
        """
        context = turn.session
        llm = self.models.get(model) or self.models["default"]
        turn.answer_id = new_id()
        turn.asked_at = time.monotonic()
        chat.watch = None if context.log is None else CallWatch()  # counts for the record of the answer
        if self.observer.stream.active:
            chat.watch = self.observer.watch_call(context, message, llm.name)
        growing = on_text = None
        listeners, gate = turn.listeners, turn.gate
        is_heard = (listeners and turn.has_stream_listener()) or "token" in context.handlers
        if is_heard and not self.guards.answers:  # tokens would reach listeners before the answer guards run
            growing = AnswerStream(self.dispatcher, turn)
            on_text = growing.add if gate is None else partial(_show_later, gate, growing.add)
        turn.expose()
        deadline = self.timer.now() + turn.limits.model_timeout
        handle = self.timer.call_at(deadline, partial(self._time_out, turn, llm))
        chat.deadline = min(deadline, turn.deadline()) if listeners or turn.timer else deadline
        try:
            if turn.budget is None:
                turn.progress.calls += 1
                answer = await (
                    llm.complete(chat, on_text=on_text)
                    if self.observer.spans is None
                    else complete_as_span(llm, chat, on_text=on_text)
                )
                if type(answer) is not ModelResponse:
                    answer = check_answer(answer, llm)
            else:
                answer = await self.metered.complete(turn, turn.budget, llm, chat, on_text=on_text)
            if gate is not None:
                await gate.wait()
            if growing is not None:
                await growing.finish(answer.text)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - a single except clause: each one slows down cancellations
            turn.cover()
            handle.cancel()
            error = as_model_error(convert_user_error(raised, "model", llm.name), llm.name)
            self.observer.fail_call(chat.watch, llm.name, error)
        else:
            turn.cover()
            handle.cancel()
            if turn.stop is not None:
                turn.check()
            return answer, self._record_answer(turn, message, answer, chat, prompt)
        turn.blame = "model"
        raise error

    def check_limit(self, turn: Turn) -> None:
        """Raise if a turn has made as many model calls as the protocol allows, or as many as the default limit.

        The default limit applies only if neither the protocol nor `Limits(model_calls=)` sets a limit. The budget of the turn
        checks `Limits(model_calls=)`.

        Raises:
            LimitReached: The turn has made as many model calls as the limit allows.
        """
        context = turn.session
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

    def _time_out(self, turn: Turn, llm: LLM) -> None:
        """Stop a turn with `ModelTimeout`. The error text contains the time that was spent waiting for rate limits."""
        context = turn.session
        text = f"no answer within {turn.limits.model_timeout:g} s"
        if waited := _waited_seconds(llm, context.id):
            text += f": it still waited for the provider's rate limit, after {waited:.1f} s"
        turn.stop_with(ModelTimeout(text, model=llm.name))

    def keep_partial(self, turn: Turn) -> None:
        """Append the received text of an interrupted answer to the conversation, marked as truncated.

        Do nothing if no text was received.
        """
        context = turn.session
        growth, turn.growth, turn.first_at = turn.growth, None, None
        if growth is not None and (text := growth.text.read()):
            parts = (Text(text),)
            answer = self._make_message(turn, parts, turn.message, "length")
            context.conversation.append(answer)
            if context.log is not None:
                context.log.add(AgentMessageRecord(message=answer, calls=turn.progress.calls))

    def _record_answer(
        self, turn: Turn, message: Message, answer: ModelResponse, chat: ModelRequest, prompt: str
    ) -> tuple[ToolCall, ...]:
        """Record a model answer in the conversation and the journal, and count its tokens.

        Return its tool calls with unique ids.
        """
        context = turn.session
        first_at = turn.first_at
        turn.growth = turn.first_at = None
        parts, calls = context.conversation.with_unique_call_ids(answer.parts)
        if answer.stop == "length":
            calls = ()
        answer_message = self._make_message(turn, parts, message, answer.stop)
        context.conversation.append(answer_message)
        if context.log is not None:
            context.log.add(
                make_agent_message_record(
                    message=answer_message,
                    stop=answer.stop,
                    usage=_usage_to_record(context, answer),
                    model=answer.model,
                    calls=turn.progress.calls,
                    repairs=turn.progress.repairs,
                    prompt=prompt,
                    seconds=time.monotonic() - turn.asked_at,
                    waited=0.0 if chat.watch is None else chat.watch.waited,
                    failures=0 if chat.watch is None else chat.watch.failures,
                    fitting=turn.fitting,
                )
            )
        context.conversation.open_calls = calls
        turn.fitting = None
        if answer.usage is not NO_USAGE:
            _count_usage(turn, answer.usage)
        for listener in turn.listeners:
            listener.receive_answer(answer)
        if self.observer.stream.active:
            self.observer.take_answer(context, message, answer, turn.asked_at, first_at)
        return calls

    def _make_message(
        self, turn: Turn, parts: tuple[Part, ...], answered: Message, stop: StopReason
    ) -> Message:
        """Build the conversation message of a model answer with `parts` to the message `answered`.

        If the answer ended at the token limit, the message is marked as truncated.
        """
        context = turn.session
        return make_message(
            id=turn.answer_id,
            session_id=context.id,
            sender=self.sender,
            parts=parts,
            correlation_id=answered.correlation_id or answered.id,
            causation_id=answered.id,
            cut=stop == "length",
            metadata=turn.answer_metadata,
            origin=context.conversation.origin,
            via=context.conversation.via,
        )


async def _show_later(gate: trio.Event, show: OnText, text: str, attempt: int) -> None:
    """Wait until `gate` is set, then pass a text delta of the answer to `show`. The model stream waits during this time.

    The message guards set `gate` when they have accepted the message.
    """
    await gate.wait()
    await show(text, attempt)


def _count_usage(turn: Turn, usage: Usage) -> None:
    """Add the token usage of a model call to the turn, its session and all parent sessions."""
    context = turn.session
    turn.progress.usage += usage
    context.conversation.usage += usage
    if context.parent is not None:
        add_to_parents(context, usage)


def add_to_parents(context: SessionContext, usage: Usage) -> None:
    """Add the token usage of a session to the usage of all its parent sessions."""
    parent = context.parent
    while parent is not None:
        parent.conversation.add_child_usage(usage)
        if parent.turn is not None:
            parent.turn.progress.usage = parent.turn.progress.usage.with_child(usage)
        parent = parent.parent


def _usage_to_record(context: SessionContext, answer: ModelResponse) -> Usage:
    """Return the token usage to record with an answer: that of the answer plus the unrecorded usage of child sessions.

    The unrecorded usage is set to zero, because this record contains it.
    """
    if context.conversation.unwritten is None:
        return answer.usage
    return answer.usage + context.conversation.take_unwritten()


def _waited_seconds(llm: LLM, session_id: str) -> float:
    """Return the seconds that a model call waited for rate limits; 0 if the model client does not report it."""
    try:
        return llm.waiting_seconds(session_id)
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code, in the task of all timers
        convert_user_error(raised, "model", llm.name)
    return 0.0
