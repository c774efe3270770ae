"""The only pipeline there is: remember, ask, read, reply, act. One message is one pass."""

import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import cast

import attrs
import trio

from actgent.actors.inbox import PriorityInbox
from actgent.actors.timer import Timer
from actgent.control.budget import Account, Budget
from actgent.control.limits import DEFAULT_MODEL_CALLS, Limits
from actgent.control.modes import Modes
from actgent.errors import (
    AnswerError,
    EmptyAnswer,
    LimitReached,
    ModelTimeout,
    ParseError,
    SessionClosed,
    Stopped,
)
from actgent.journal.records import NO_LIMITS, Appended, Resumed, Said
from actgent.llm.base import LLM, Answer, Chat, StopReason
from actgent.messages import (
    NO_USAGE,
    ChatMessage,
    Message,
    Part,
    Reply,
    Route,
    Sender,
    Text,
    ToolCall,
    ToolSpec,
    new_id,
)
from actgent.protocols.base import (
    CallTools,
    Change,
    Continue,
    Fail,
    Finish,
    Outcome,
    Profile,
    Request,
    View,
)
from actgent.tools.execution import call_scope

from .approval import Waiting
from .call_options import restored_options
from .calling import Calling
from .context import SessionContext
from .dispatcher import Delivery, Dispatcher, to_deliveries
from .failures import check_answer, check_stop, kind_of
from .growing import GrowingAnswer
from .hooks import Hooks
from .ledger import Ledger
from .notes import tell_notes
from .observer import Observer
from .spending import Spending
from .tasks import outcome_of, reports_due
from .turn import Resume, Suspension, Turn, running_turn
from .waiters import CallOptions

LAST_WORDS = 1.0
"""Seconds that all handlers together have to hear that their agent stops."""
SYSTEM = Sender("actgent", "system")
REPAIR = "Your last answer could not be used: {reason}. Answer again, in the form that was asked for."
GO_ON = ChatMessage("user", (Text("Go on."),))
"""Said where a stage says nothing of its own: a conversation that ends with the model's words would be a prefill."""

Router = Callable[[SessionContext, Turn, Route], Awaitable[Reply | None]]
"""Hands a message on to another agent; None where the action has no agent."""


@attrs.define(eq=False, kw_only=True)
class AgentCore:
    """Takes each message through memory, prompt, model and classifier to its session's handlers."""

    sender: Sender
    """The agent as the speaker of its answers."""
    system: str
    """The system prompt, the same for all sessions and turns."""
    profile: Profile
    models: Mapping[str, LLM]
    calling: Calling
    inbox: PriorityInbox[Message]
    limits: Limits
    options: CallOptions
    """What each turn gets that was not started with options of its own."""
    dispatcher: Dispatcher
    observer: Observer
    timer: Timer
    router: Router
    ledger: Ledger = attrs.field(factory=Ledger)
    spending: Spending = attrs.field(factory=Spending)
    hooks: Hooks = attrs.field(factory=Hooks)
    modes: Modes | None = None
    _silence: float | None = None
    """When the time for last words is over."""
    _tools_seen: Sequence[ToolSpec] | None = None
    _tools_sum: int = 0
    """The checksum of the tools that were seen last: those of an agent seldom change."""

    def begin(self) -> None:
        """Be ready for turns, at the start and after each restart."""
        self._silence = None

    # --- the turn ------------------------------------------------------------------------

    def begin_turn(self, context: SessionContext, message: Message, joined: tuple[Message, ...] = ()) -> Turn:
        """Claim a session for an outside message; from now on it can be interrupted. `joined` are answered with it."""
        waiter = context.waiter_of(message)
        options = self._restored_options(context, message) if waiter is None else waiter.options
        told = len(context.record)
        limits = options.limits or self.limits
        turn = context.turn = Turn(
            message, options, time.monotonic(), waiter=waiter, limits=limits, told=told, joined=joined
        )
        if context.resume is not None:
            self._take_up(context, turn, context.resume)
        if limits.is_shared or turn.resume is not None or context.is_bounded:
            self.ledger.begin(context, turn, self.sender.name)
        if context.closed:  # it came in while the session was closing
            turn.stop_with(SessionClosed(context.id))
        if waiter is not None:
            waiter.turn = turn
            if waiter.abandoned:
                waiter.abandon()
        return turn

    def _restored_options(self, context: SessionContext, message: Message) -> CallOptions:
        told = context.take_options(message.id)
        return self.options if told is None else restored_options(self.options, told)

    async def run_turn(self, scope: trio.CancelScope, context: SessionContext, turn: Turn) -> None:
        """All passes from an outside message to its last outcome, within reach of an interruption through `scope`."""
        turn.task = trio.lowlevel.current_task()
        turn.scope = scope
        running_turn.set(turn)
        call_scope.set(None)
        message: Message | None = turn.message
        if turn.budget is not None:
            self._start_clock(turn, turn.budget)
        try:
            if turn.is_cut:
                turn.check()
            if turn.waiting is not None:
                message = await self._call_again(context, turn, turn.waiting)
            elif turn.resume is not None:
                message = await self._resume(context, turn, turn.resume)
            elif turn.joined:
                self._remember_joined(context, turn)
            while message is not None:
                await self._pass(context, turn, message)
                message = self.inbox.next_followup(context.id)
            if turn.waiting is None:
                turn.stop = None  # it came too late
        except Exception as error:  # noqa: BLE001 - a turn's edge: whatever it was, other sessions go on
            turn.error = error

    def _take_up(self, context: SessionContext, turn: Turn, resume: Resume) -> None:
        """Go on with the counts that the turn had before the restart."""
        turn.resume, context.resume = resume, None
        turn.joined = resume.joined
        turn.calls, turn.repairs, turn.usage = resume.calls, resume.repairs, resume.usage
        turn.last_call, turn.identical = resume.last_call, resume.identical

    async def _resume(self, context: SessionContext, turn: Turn, resume: Resume) -> Message | None:
        """Do what was due when the process ended; returns the message to go on with."""
        last = context.last_said
        assert last is not None  # noqa: S101 - the turn began with a message
        if not resume.stop:
            turn.results.extend(last.tool_results)
            await self.calling.deliver(context, turn)
            return last
        turn.answer_id = last.id
        message = next(m for m in reversed(context.record) if m.id == last.causation_id)
        answer = Answer(parts=last.parts, stop=cast("StopReason", resume.stop))
        calls = () if last.cut else last.tool_calls
        context.open_calls = calls
        view = self._view(context, turn, message)
        view.state = context.state_at(resume.state_number)
        await self._react(context, turn, view, answer, calls)
        return self.inbox.next_followup(context.id)

    async def _call_again(self, context: SessionContext, turn: Turn, waiting: Waiting) -> Message | None:
        """Go on with calls of which some waited for people; returns the message to go on with."""
        turn.waiting = None
        results = await self.calling.run(context, turn, waiting.message, waiting.calls, stage=waiting.stage)
        if results is not None:
            self.inbox.put_followup(results)
        if self.hooks.listeners:
            await self.hooks.tell(context, turn, self.dispatcher)
        return self.inbox.next_followup(context.id)

    def suspend_turn(self, context: SessionContext, turn: Turn) -> None:
        """The turn's task ends, and what it needs to go on stays."""
        context.turn = turn.task = turn.scope = None
        turn.exposed = False
        if turn.budget is not None:
            self._stop_clock(turn, turn.budget)
        context.suspension = Suspension(turn.message, turn, messages=1 + len(turn.joined))

    def continue_turn(self, context: SessionContext, suspension: Suspension) -> Turn:
        """The turn is to go on; from now on it can be interrupted."""
        context.suspension = None
        turn = suspension.turn
        if turn is None:
            turn = self.begin_turn(context, suspension.message)
        context.turn = turn
        turn.on_stop = None
        if suspension.waiter is not None:
            turn.waiter = suspension.waiter
            turn.waiter.turn = turn
        return turn

    async def finish_turn(self, context: SessionContext, turn: Turn) -> None:
        """What a turn failed with goes to the handlers, out of an interruption's reach; then the turn is over."""
        turn.exposed = False
        turn.error = turn.stop or turn.error
        try:
            if turn.error is not None:
                await self._fail(context, turn, turn.error)
        finally:
            self._end_turn(context, turn)

    async def _fail(self, context: SessionContext, turn: Turn, error: Exception) -> None:
        try:
            self._keep_partial(context, turn)
            await self.calling.give_up(context, turn)
            await self.hooks.tell(context, turn, self.dispatcher)
        finally:  # also in a crash, or when the time for last words is over: sync handlers can still be told
            for message in turn.joined:
                await self.dispatcher.fail(context, message.id, error, blame=turn.blame)  # noqa: ASYNC102
            await self.dispatcher.fail(context, turn.message.id, error, waiter=turn.waiter, blame=turn.blame)  # noqa: ASYNC102 - the callers shield

    async def say_stopped(self, context: SessionContext, turn: Turn) -> None:
        turn.error = Stopped(self.sender.name)
        if turn.budget is not None:
            self._stop_clock(turn, turn.budget)
        if context.log is not None:  # what follows is told, and not written: the next start goes on from here
            context.log.flush_soon()
            context.log = None
        heard = turn.waiter is not None and turn.waiter.hears
        try:
            if heard or context.handlers.any_of("exception", "tool_result"):
                with self.last_words():
                    await self._fail(context, turn, turn.error)
            else:  # a shield is dear where thousands stop
                await self._fail(context, turn, turn.error)
        finally:
            self._end_turn(context, turn)

    def last_words(self) -> trio.CancelScope:
        """A shield for handlers that have to hear that their agent stops: one second for all of them together."""
        if self._silence is None:
            self._silence = trio.current_time() + LAST_WORDS
        return trio.CancelScope(deadline=self._silence, shield=True)

    async def fail_unstarted(self, context: SessionContext, message: Message, error: Exception) -> None:
        """End a message that never had its turn."""
        waiter = context.waiter_of(message)
        try:
            await self.dispatcher.fail(context, message.id, error, waiter=waiter)
        finally:
            context.settle()
            if context.log is not None and not isinstance(error, Stopped):
                self._write_end(context, message, error=error)
            if waiter is not None:
                waiter.finish()

    def _start_clock(self, turn: Turn, budget: Budget) -> None:
        now = trio.current_time()
        over, account = budget.start_clock(now)
        if account is None:
            return
        if over <= now:
            turn.stop_with(account.reached("seconds"))
        else:
            turn.alarm = self.timer.call_at(over, partial(self._run_out, turn, budget, account))

    def _run_out(self, turn: Turn, budget: Budget, account: Account) -> None:
        budget.tick(trio.current_time())
        turn.stop_with(account.reached("seconds"))

    def _stop_clock(self, turn: Turn, budget: Budget) -> None:
        if turn.alarm is not None:
            turn.alarm.cancel()
        budget.stop_clock(trio.current_time())

    def _end_turn(self, context: SessionContext, turn: Turn) -> None:
        context.turn = turn.waiting = None
        if turn.budget is not None:
            self._stop_clock(turn, turn.budget)
        if turn.waiter is not None:
            turn.waiter.finish()
        if turn.ended is not None:
            turn.ended.set()
        context.settle(1 + len(turn.joined))
        if context.approvals is not None and context.approvals.is_suspended:
            context.note(Resumed())
        if context.log is not None:
            self._write_end(context, *turn.joined, turn.message, error=turn.error, blame=turn.blame)
        self.observer.end_turn(context, turn)

    def _write_end(
        self, context: SessionContext, *messages: Message, error: Exception | None, blame: str = "internal"
    ) -> None:
        """Messages were dealt with; a session that ends with them is closed in the same step."""
        if context.task is not None and context.task.message_id == messages[-1].id:
            context.log.note(outcome_of(context.task, error, blame))
        failed = None if error is None else kind_of(error, blame)
        closes = context.transient and not context.pending and not reports_due(context)
        context.log.end(*[message.id for message in messages], failed=failed, closes=closes)

    async def _pass(self, context: SessionContext, turn: Turn, message: Message) -> None:
        if self.modes is not None:
            self._tell_modes(self.modes, context, turn, message)
        self._remember(context, turn, message)
        if self.hooks.queries or self.hooks.listeners:
            await self._run_hooks(context, turn, message)
        view = self._view(context, turn, message)
        answer, calls = await self._ask(context, turn, view)
        view.state, view.calls = context.seen_state, turn.calls
        await self._react(context, turn, view, answer, calls)
        if self.hooks.listeners:
            await self.hooks.tell(context, turn, self.dispatcher)

    async def _react(
        self,
        context: SessionContext,
        turn: Turn,
        view: View,
        answer: Answer,
        calls: tuple[ToolCall, ...],
    ) -> None:
        """Read an answer that stands in the record, and act on it."""
        message = view.message
        try:
            outcomes = self._read(turn, view, answer, calls)
        except (ParseError, EmptyAnswer) as error:
            self._repair(turn, message, error)
        else:
            turn.repairs = 0
            turn.aside = ""
            await self._act(context, turn, message, outcomes)

    async def _run_hooks(self, context: SessionContext, turn: Turn, message: Message) -> None:
        if message is turn.message:
            asked = [each for each in (*turn.joined, message) if each.sender.kind == "user"]
            said = [await self.hooks.context_of(context, each, self.dispatcher) for each in asked]
            turn.aside = "\n\n".join(filter(None, (turn.aside, *said)))
        await self.hooks.tell(context, turn, self.dispatcher)
        turn.check()

    # --- modes ---------------------------------------------------------------------------

    def _tell_modes(self, modes: Modes, context: SessionContext, turn: Turn, message: Message) -> None:
        """Do what the user says about the mode, and tell the model of all changes, while no calls are open."""
        if modes.commands and message is turn.message:
            refused = [modes.obey(context.state, each) for each in (*turn.joined, message)]
            turn.aside = "\n".join(filter(None, refused))
        tell_notes(context, (modes,), calls=turn.calls, repairs=turn.repairs)

    async def tell_idle(self, context: SessionContext) -> None:
        """What was done beside a session is durable on return, and is in its record unless a turn runs."""
        is_idle = context.turn is None and context.resume is None and not context.open_calls
        if is_idle and self.modes is not None:
            tell_notes(context, (self.modes,))
        if context.log is not None:
            await context.log.flush()
        await trio.lowlevel.checkpoint()

    # --- remember ------------------------------------------------------------------------

    def _remember(self, context: SessionContext, turn: Turn, message: Message) -> None:
        """Write the message into the record; tool results stand there already, right behind their calls."""
        if context.last_said is not message:
            context.append(message, answered=True)
            if context.log is not None:
                context.log.note(_entering(message, turn))
        turn.check()
        self.observer.begin_pass(context, message)

    def _remember_joined(self, context: SessionContext, turn: Turn) -> None:
        """Write what the turn answers besides into the record, before the message that it is about."""
        for place, message in enumerate(turn.joined):
            context.append(message, answered=True)
            if context.log is not None:
                context.log.note(Appended(message_id=message.id, joins=place > 0))

    def _view(self, context: SessionContext, turn: Turn, message: Message) -> View:
        return View(
            message=message,
            record=context.record,
            state=context.seen_state,
            stage=message.stage,
            calls=turn.calls,
            repairs=turn.repairs,
            profile=self.profile,
            tools=self.calling.registry.specs(),
        )

    # --- ask -----------------------------------------------------------------------------

    async def _ask(
        self, context: SessionContext, turn: Turn, view: View
    ) -> tuple[Answer, tuple[ToolCall, ...]]:
        """One model call: the answer as the record has it by then, and its calls under the ids they have there."""
        self._check_model_calls(context, turn)
        request = turn.options.protocol.request(view)
        llm = self.models.get(request.model) or self.models["default"]
        chat = self._chat(context, turn, view, request)
        turn.answer_id = new_id()
        started = time.monotonic()
        answer = await self._complete(context, turn, llm, chat)
        turn.partial = ""
        prompt = "" if context.log is None else self._prompt_of(chat)
        calls = self._remember_answer(context, turn, view.message, answer, prompt=prompt)
        self._count_usage(context, turn, answer)
        if turn.waiter is not None:
            turn.waiter.take_answer(answer)
        self.observer.take_answer(context, view.message, answer, started)
        return answer, calls

    def _check_model_calls(self, context: SessionContext, turn: Turn) -> None:
        """The limit of the turn alone; one that was set is shared, and its budget's."""
        if turn.limits.model_calls is not None:
            return
        limit = turn.options.protocol.max_iterations or DEFAULT_MODEL_CALLS
        if turn.calls >= limit:
            raise LimitReached(
                "model calls",
                limit,
                field="model_calls",
                used={"model_calls": turn.calls},
                agent=self.sender.name,
                session_id=context.id,
            )

    def _chat(self, context: SessionContext, turn: Turn, view: View, request: Request) -> Chat:
        messages, tail, options = context.view.messages(), request.tail, turn.options
        if turn.aside or options.tail:
            tail = "\n\n".join(filter(None, (turn.aside, options.tail, tail)))
        if tail:
            messages = (*messages, ChatMessage("user", (Text(tail),)))
        elif messages and messages[-1].role == "assistant" and not turn.is_paused:
            messages = (*messages, GO_ON)
        system = options.system if options.system is not None else context.system
        return Chat(
            system=self.system if system is None else system,
            messages=messages,
            tools=view.tools,
            temperature=options.temperature,
            max_tokens=options.max_tokens,
            response_format=request.response_format,
            session=context.id,
            priority=turn.message.priority,
        )

    def _prompt_of(self, chat: Chat) -> str:
        """What stands for the prompt in the journal, so that a replay can tell that it changed."""
        if chat.tools is not self._tools_seen:
            self._tools_seen = chat.tools
            self._tools_sum = zlib.crc32(repr(chat.tools).encode("utf-8", "surrogatepass"))
        return f"{zlib.crc32(chat.system.encode('utf-8', 'surrogatepass'), self._tools_sum):08x}"

    async def _complete(self, context: SessionContext, turn: Turn, llm: LLM, chat: Chat) -> Answer:
        """The call itself, under its timeout and within reach of an interruption."""
        on_text = None
        if context.handlers.of("token") or (turn.waiter is not None and turn.waiter.hears):
            on_text = GrowingAnswer(self.dispatcher, context, turn).add
        alarm = self.timer.call_at(
            trio.current_time() + turn.limits.model_timeout, partial(self._time_out, context, turn, llm)
        )
        turn.exposed = True
        try:
            if turn.budget is None:
                turn.calls += 1
                answer = check_answer(await llm.complete(chat, on_text=on_text), llm)
            else:
                answer = await self.spending.complete(turn, turn.budget, llm, chat, on_text=on_text)
        except Exception:
            turn.blame = "model"  # which may be anybody's code, and raise anything
            raise
        finally:
            turn.exposed = False
            alarm.cancel()
        turn.check()
        return answer

    def _time_out(self, context: SessionContext, turn: Turn, llm: LLM) -> None:
        text = f"no answer within {turn.limits.model_timeout:g} s"
        if waited := llm.waited(context.id):
            text += f": it still waited for the provider's rate limit, after {waited:.1f} s"
        turn.stop_with(ModelTimeout(text, model=llm.name))

    def _keep_partial(self, context: SessionContext, turn: Turn) -> None:
        """What an answer had come to when it was cut stays in the record, marked as such."""
        if turn.partial:
            parts, turn.partial = (Text(turn.partial),), ""
            said = self._said(context, parts, turn.answer_id, turn.message, cut=True)
            context.append(said)
            if context.log is not None:
                context.log.note(Said(message=said, calls=turn.calls))

    def _remember_answer(
        self, context: SessionContext, turn: Turn, message: Message, answer: Answer, *, prompt: str
    ) -> tuple[ToolCall, ...]:
        """Write the answer into the record; returns its calls, under ids that are unique in the session."""
        cut = answer.stop == "length"
        parts = answer.parts
        calls: list[ToolCall] = []
        if answer.tool_calls:
            adopted = [context.adopt(p) if isinstance(p, ToolCall) else p for p in parts]
            calls = [] if cut else [p for p in adopted if isinstance(p, ToolCall)]
            parts = tuple(adopted)
        said = self._said(context, parts, turn.answer_id, message, cut=cut)
        context.append(said)
        if context.log is not None:
            context.log.note(
                Said(
                    message=said,
                    stop=answer.stop,
                    usage=answer.usage,
                    model=answer.model,
                    calls=turn.calls,
                    repairs=turn.repairs,
                    prompt=prompt,
                )
            )
        context.open_calls = tuple(calls)
        return context.open_calls

    def _said(
        self, context: SessionContext, parts: tuple[Part, ...], answer_id: str, to: Message, *, cut: bool
    ) -> Message:
        return Message(
            id=answer_id,
            session_id=context.id,
            sender=self.sender,
            parts=parts,
            correlation_id=to.correlation_id or to.id,
            causation_id=to.id,
            cut=cut,
        )

    def _count_usage(self, context: SessionContext, turn: Turn, answer: Answer) -> None:
        if answer.usage is not NO_USAGE:
            turn.usage += answer.usage
            context.usage += answer.usage

    # --- read ----------------------------------------------------------------------------

    def _read(self, turn: Turn, view: View, answer: Answer, calls: tuple[ToolCall, ...]) -> Sequence[Outcome]:
        """What the answer means; native calls come before any text, in every protocol."""
        if turn.budget is not None and turn.budget.cut is not None:
            raise turn.budget.cut
        check_stop(answer)
        if calls:
            return [CallTools(calls, view.stage)]
        turn.is_paused = answer.stop == "pause"
        if turn.is_paused:
            return [Continue(view.stage)]
        if not answer.text.strip():
            raise EmptyAnswer("it was empty")
        outcomes = turn.options.protocol.read(answer, view)
        for outcome in outcomes:
            if isinstance(outcome, Fail):
                raise outcome.error
        return outcomes

    def _repair(self, turn: Turn, message: Message, error: AnswerError) -> None:
        """Ask again with the error, a bounded number of times; then it is the turn's failure."""
        if turn.repairs >= turn.limits.repairs:
            raise error
        turn.repairs += 1
        self._follow_up(message, REPAIR.format(reason=error.reason.rstrip(".")), message.stage)

    def _follow_up(self, message: Message, note: str, stage: str | None) -> None:
        """Go on with the turn, with a note at the conversation's end."""
        self.inbox.put_followup(message.caused(SYSTEM, (Text(note),) if note else (), stage=stage))

    # --- reply and act -------------------------------------------------------------------

    async def _act(
        self, context: SessionContext, turn: Turn, message: Message, outcomes: Sequence[Outcome]
    ) -> None:
        """Act on the outcomes in their order: state, events, routing, conversation, and what the turn goes on with."""
        further = []
        for place, outcome in enumerate(outcomes):
            if isinstance(outcome, Change):  # once: it may have been done before a restart
                context.state.dispatch(outcome.action, once=f"{turn.answer_id}/{place}")
            elif isinstance(outcome, (CallTools, Continue, Finish)):
                further.append(outcome)
        deliveries = to_deliveries(outcomes, turn.answer_id, turn.usage)
        if deliveries and context.log is not None:
            await context.log.flush()
        for delivery in deliveries:
            await self._deliver(context, turn, delivery)
        for delivery in deliveries:
            if isinstance(delivery, Route):
                await self._hand_over(context, turn, delivery)
        if further:
            await self._go_on(context, turn, message, further)

    async def _go_on(
        self,
        context: SessionContext,
        turn: Turn,
        message: Message,
        further: Sequence[CallTools | Continue | Finish],
    ) -> None:
        """Bring about the turn's next message, unless it is to end; tools come before going on without."""
        if any(isinstance(outcome, Finish) for outcome in further):
            return
        if tools := [outcome for outcome in further if isinstance(outcome, CallTools)]:
            calls = [call for outcome in tools for call in outcome.calls]
            results = await self.calling.run(context, turn, message, calls, stage=tools[-1].stage)
            if results is not None:
                self.inbox.put_followup(results)
            return
        for outcome in further:
            if isinstance(outcome, Continue):
                self._follow_up(message, outcome.note, outcome.stage)

    async def _deliver(self, context: SessionContext, turn: Turn, delivery: Delivery) -> None:
        if turn.waiter is not None:
            turn.waiter.take(delivery)
        await self.dispatcher.deliver(context, turn, delivery)

    async def _hand_over(self, context: SessionContext, turn: Turn, route: Route) -> None:
        """Let another agent answer; its reply is this session's too."""
        turn.check()
        turn.exposed = True
        try:
            reply = await self.router(context, turn, route)
        finally:
            turn.exposed = False
        turn.check()
        if reply is not None:
            await self._deliver(context, turn, reply)


def _entering(message: Message, turn: Turn) -> Appended | Said:
    """How the journal hears that a message enters the conversation."""
    if message is turn.message:
        limits = NO_LIMITS if turn.budget is None else turn.budget.own.limits
        return Appended(message_id=message.id, joins=bool(turn.joined), limits=limits)
    return Said(message=message, calls=turn.calls, repairs=turn.repairs)
