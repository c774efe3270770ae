"""The only pipeline there is: remember, ask, read, reply, act. One message is one pass."""

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import cast

import attrs
import trio

from actgent.actors.inbox import PriorityInbox
from actgent.errors import (
    AnswerError,
    EmptyAnswer,
    InvalidState,
    ParseError,
)
from actgent.errors.printable import quoted
from actgent.journal.records import NO_LIMITS, Appended, Said, make_appended, make_said
from actgent.llm.base import Answer, Chat, StopReason
from actgent.memory.base import Memory
from actgent.messages import (
    Delivery,
    Message,
    Reply,
    Route,
    Sender,
    Text,
    ToolCall,
)
from actgent.modes.modes import Modes
from actgent.protocols.base import (
    CallTools,
    Change,
    Classifier,
    Continue,
    Fail,
    Finish,
    Outcome,
    Profile,
    PromptTemplate,
    Say,
    View,
)
from actgent.protocols.prompts import PromptManager
from actgent.sessions.context import SessionContext
from actgent.sessions.session_log import SessionLog
from actgent.sessions.turn import Turn, checkpoint_of
from actgent.sessions.waiting.approval_ledger import PendingCalls
from actgent.sessions.waiting.turn_checkpoint import TurnCheckpoint
from actgent.support.foreign import failure_of
from actgent.support.quick_init import maker

from .calls.answers import check_stop
from .calls.model_calls import ModelCaller
from .calls.tool_calls import ToolCaller
from .dispatcher import Dispatcher, to_deliveries
from .guards import Guards, PersonNeeded
from .handovers import Receivers
from .hooks import Hooks
from .notices import add_notices
from .observer import Observer
from .outcomes import is_said, told_elsewhere, told_records
from .tool_notices import offer_tools

SYSTEM = Sender("actgent", "system")
REPAIR = "Your last answer could not be used: {reason}. Answer again, in the form that was asked for."
BEGUN = (
    "Your last answer called tools, and the process ended while they ran: whether they took effect is not known. "
    "They are not called again by themselves. Answer again, in the form that is asked for now."
)
_make_calls, _make_chat, _make_view = maker(CallTools), maker(Chat), maker(View)
Router = Callable[[SessionContext, Turn, Route], Awaitable[Reply | None]]
"""Hands a message on to another agent; None where the action has no agent."""


@attrs.define(eq=False, kw_only=True)
class AgentCore:
    """Takes each message through memory, prompt manager, model and classifier to its session's handlers.

    A pass is five steps: `remember` the message, `ask` the model, `read` its answer, `act` on what it means, and `reply`. An
    agent of one's own overrides one of them, and calls the inherited one with what it was given; see `Agent.core_type`.
    """

    profile: Profile
    memory: Memory
    """Opens a session's memory, which decides what the model is shown."""
    prompts: PromptManager
    """Renders the prompts round that."""
    models: ModelCaller
    calling: ToolCaller
    inbox: PriorityInbox[Message]
    dispatcher: Dispatcher
    observer: Observer
    router: Router
    hooks: Hooks = attrs.field(factory=Hooks)
    modes: Modes | None = None
    guards: Guards = attrs.field(factory=Guards)
    bring_summary: Callable[[SessionContext, Turn], object] | None = None
    """Brings summaries into conversations, between the rounds of turns too; None: no summaries are made."""
    receivers: Receivers | None = None
    """Agents that its sessions may be handed over to; None if there are none."""

    # --- the turn ------------------------------------------------------------------------

    async def run_turn(self, context: SessionContext, turn: Turn) -> None:
        """All passes from an outside message to its last outcome; what it fails with is in `turn.control.error` then."""
        message: Message | None = turn.message
        try:
            if turn.control.is_cut:
                turn.check()
            pending, turn.pending_approvals = turn.pending_approvals, None
            if pending is not None and pending.calls:
                message = await self._call_again(context, turn, pending)
            elif turn.checkpoint is not None:
                message = await self._resume(context, turn, turn.checkpoint)
            elif turn.joined:
                self._remember_joined(context, turn)
            while message is not None:
                await self._pass(context, turn, message)
                message = self.inbox.next_followup(context.id)
            if turn.control.stop is not None and turn.pending_approvals is None:
                turn.control.revoke_stop()  # it came too late
        except PersonNeeded as needed:
            await self._wait_for_person(context, turn, needed)
        except Exception as error:  # noqa: BLE001 - a turn's edge: whatever it was, other sessions go on
            turn.control.error = error
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - of a protocol, rule or reducer, or of our nurseries
            turn.control.error = failure_of(raised, "turn of session", context.id)

    async def _wait_for_person(self, context: SessionContext, turn: Turn, needed: PersonNeeded) -> None:
        """Ask a person what a guard wants to know; the turn goes on behind what was said last when that is decided."""
        former, said = turn.checkpoint, context.conversation.messages
        turn.checkpoint = checkpoint_of(turn, said, state_number=context.state_number)
        if former is not None and turn.checkpoint is not None:
            turn.checkpoint.guarded.update(former.guarded)
            turn.checkpoint.delivered |= former.delivered
        try:
            await self.calling.approvals.ask_about(context, turn, needed.asked)
        except Exception as error:  # noqa: BLE001 - as in `run_turn`
            turn.control.error = error
        else:
            turn.pending_approvals = PendingCalls(turn.message, (), None)

    async def _resume(self, context: SessionContext, turn: Turn, resume: TurnCheckpoint) -> Message | None:
        """Do what was due when the process ended; returns the message to go on with."""
        last = context.conversation.last_message
        assert last is not None  # noqa: S101 - the turn began with a message
        if not resume.stop:
            turn.results.extend(last.tool_results)
            await self.calling.deliver(context, turn)
            return last
        turn.answer.id = last.id
        if last.sender.kind == "agent":
            await self._hear_again(context, turn)
            return None
        message = next(m for m in reversed(context.conversation.messages) if m.id == last.causation_id)
        answer = Answer(parts=last.parts, stop=cast("StopReason", resume.stop))
        calls = () if last.cut else last.tool_calls
        context.conversation.open_calls = calls
        view = self._view(context, turn, message)
        view.state = context.state_at(resume.state_number)
        if not calls and self._is_lost(turn, view, answer, resume):
            self._follow_up(message, BEGUN, message.stage)
            return self.inbox.next_followup(context.id)
        await self._react(context, turn, view, answer, calls)
        return self.inbox.next_followup(context.id)

    def _is_lost(self, turn: Turn, view: View, answer: Answer, resume: TurnCheckpoint) -> bool:
        """Return True if the calls in an answer's text are unknown now: it is redacted, or the protocol changed."""
        if not (resume.unsettled or resume.is_redacted):
            return False
        asks = self._asks_for_tools(turn, view, answer)
        return resume.is_redacted or not asks if resume.unsettled else asks

    def _asks_for_tools(self, turn: Turn, view: View, answer: Answer) -> bool:
        try:
            return any(isinstance(each, CallTools) for each in self.read(turn, view, answer, ()))
        except AnswerError:
            return False

    async def _call_again(self, context: SessionContext, turn: Turn, pending: PendingCalls) -> Message | None:
        """Resume a batch after its approvals were decided; returns the next message of the turn, if any."""
        results = await self.calling.run(context, turn, pending.message, pending.calls, stage=pending.stage)
        if results is not None:
            self.inbox.put_followup(results)
        if self.hooks.listeners:
            await self.hooks.tell(context, turn, self.dispatcher)
        return self.inbox.next_followup(context.id)

    def close_calls(self, context: SessionContext, turn: Turn) -> None:
        """Complete the conversation of a turn that fails: keep the cut answer, and give each open call a result."""
        self.models.keep_partial(context, turn)
        self.calling.close_open(context, turn)

    async def deliver_rest(self, context: SessionContext, turn: Turn) -> None:
        """Hand the handlers the results and messages of a failed turn that they did not get yet."""
        await self.calling.deliver(context, turn)
        await self.hooks.tell(context, turn, self.dispatcher)

    async def _pass(self, context: SessionContext, turn: Turn, message: Message) -> None:
        if self.modes is not None:
            self._tell_modes(self.modes, context, turn, message)
        if self.bring_summary is not None:
            self.bring_summary(context, turn)
        if self.calling.registry.has_toolsets:
            offer_tools(context, turn, self.calling.registry)
        self.remember(context, turn, message)
        if self.hooks.queries or self.hooks.listeners:
            await self._run_hooks(context, turn, message)
        due = self.receivers is not None and self.receivers.are_due(context, turn)
        if due and await self._is_answered(context, turn, message):
            return
        view = self._view(context, turn, message)
        if self.hooks.staged:
            await self.hooks.gather_for(context, turn, view, self.dispatcher)
        if self.guards.messages and message is turn.message:
            asking = partial(self.ask, context, turn, view)
            answer, calls = await self.guards.ask_beside(context, turn, self.dispatcher, asking)
        else:
            answer, calls = await self.ask(context, turn, view)
        view.state, view.calls = context.seen_state, turn.progress.calls
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
            outcomes = self.read(turn, view, answer, calls)
        except (ParseError, EmptyAnswer) as error:
            if isinstance(error, ParseError):
                error.raw = error.raw or answer.text
            self._repair(turn, message, error)
        else:
            repairs, turn.progress.repairs = turn.progress.repairs, 0
            turn.answer.aside = ""
            try:
                await self.act(context, turn, message, outcomes)
            except InvalidState as error:  # of a Change, which comes before everything else of the answer
                turn.progress.repairs = repairs
                self._repair(turn, message, ParseError(str(error), answer.text))

    async def _run_hooks(self, context: SessionContext, turn: Turn, message: Message) -> None:
        if message is turn.message:
            asked = [each for each in (*turn.joined, message) if each.sender.kind == "user"]
            said = [await self.hooks.context_of(context, each, self.dispatcher) for each in asked]
            turn.answer.aside = "\n\n".join(filter(None, (turn.answer.aside, *said)))
        await self.hooks.tell(context, turn, self.dispatcher)
        turn.check()

    # --- modes ---------------------------------------------------------------------------

    def _tell_modes(self, modes: Modes, context: SessionContext, turn: Turn, message: Message) -> None:
        """Do what the user says about the mode, and tell the model of all changes, while no calls are open."""
        if modes.commands and message is turn.message:
            said = [each for each in (*turn.joined, message) if context.is_from_person(each)]
            refused = [modes.obey(context.state, each) for each in said]
            turn.answer.aside = "\n".join(filter(None, refused))
        if add_notices(context, (modes,), calls=turn.progress.calls, repairs=turn.progress.repairs):
            self.observer.change_mode(context)

    async def tell_idle(self, context: SessionContext) -> None:
        """Make changes beside a turn durable; they are in the conversation, too, unless a turn runs."""
        is_idle = context.turn is None and context.checkpoint is None and not context.conversation.open_calls
        if is_idle and self.modes is not None and add_notices(context, (self.modes,)):
            self.observer.change_mode(context)
        if context.log is not None:
            await context.log.flush()
        await trio.lowlevel.checkpoint()

    # --- remember ------------------------------------------------------------------------

    def remember(self, context: SessionContext, turn: Turn, message: Message) -> None:
        """Write the message into the record; tool results stand there already, right behind their calls."""
        if context.conversation.last_message is not message:
            context.conversation.append(message, answered=True)
            if context.log is not None:
                context.log.add(_entering(message, turn))
                if message is turn.message and context.handlers.of("growing"):
                    # Readers follow the session: write the start of the turn now, not with the first answer.
                    context.log.flush_soon(is_awaited=True)
        if turn.control.stop is not None:
            turn.check()
        if self.observer.stream.watched:
            self.observer.begin_pass(context, message)

    def _remember_joined(self, context: SessionContext, turn: Turn) -> None:
        """Write what the turn answers besides into the record, before the message that it is about."""
        for place, message in enumerate(turn.joined):
            context.conversation.append(message, answered=True)
            if context.log is not None:
                context.log.add(Appended(message_id=message.id, joins=place > 0, at=time.time()))

    def _view(self, context: SessionContext, turn: Turn, message: Message) -> View:
        return _make_view(
            message=message,
            record=context.conversation.messages,
            state=context.seen_state,
            stage=message.stage,
            calls=turn.progress.calls,
            repairs=turn.progress.repairs,
            profile=self.profile,
            tools=self.calling.registry.specs()
            if (offered := context.conversation.offered) is None
            else offered.specs,
        )

    # --- ask -----------------------------------------------------------------------------

    def ask(
        self, context: SessionContext, turn: Turn, view: View
    ) -> Awaitable[tuple[Answer, tuple[ToolCall, ...]]]:
        """Ask the model what memory shows, between the prompts; gives its answer, and the native calls in it."""
        if turn.progress.calls:  # a first one is always allowed
            self.models.check_limit(context, turn)
        options = turn.options
        template: PromptTemplate = options.protocol
        request = template.request(view)
        if template.stages:
            turn.answer.metadata = template.answer_metadata(view)
        prompts, shown = self.prompts, context.conversation.view
        prompt = prompts.user_prompt(context, view, request, shown) if prompts.user else request.tail
        if turn.answer.aside or options.tail:
            prompt = "\n\n".join(filter(None, (turn.answer.aside, options.tail, prompt)))
        system = options.system if options.system is not None else context.conversation.system
        chat = _make_chat(
            system=prompts.session_prompt(context, shown) if system is None else system,
            messages=prompts.messages(context, shown, prompt, is_paused=turn.answer.is_paused),
            tools=view.tools,
            temperature=options.temperature,
            max_tokens=options.max_tokens,
            response_format=request.response_format,
            session=context.id,
            owner=context.works_for,
            priority=turn.message.priority,
        )
        known = "" if context.log is None else prompts.fingerprint(chat.system, chat.tools)
        model = request.model if options.model is None else options.model
        if self.models.fitter is None:
            return self.models.ask(context, turn, view.message, chat, model=model, prompt=known)
        again = partial(prompts.messages, context, shown, prompt, is_paused=turn.answer.is_paused)
        return self.models.ask_fitting(context, turn, view.message, chat, again, model=model, prompt=known)

    # --- read ----------------------------------------------------------------------------

    def read(self, turn: Turn, view: View, answer: Answer, calls: tuple[ToolCall, ...]) -> Sequence[Outcome]:
        """Interpret the answer; native calls come before any text, in every protocol."""
        if turn.budget is not None and turn.budget.cut is not None:
            raise turn.budget.cut
        if answer.stop != "end":
            check_stop(answer)
        if calls:
            return [_make_calls(calls, view.stage)]
        turn.answer.is_paused = answer.stop == "pause"
        if turn.answer.is_paused:
            return [Continue(view.stage)]
        if not answer.text.strip():
            raise EmptyAnswer("it was empty")
        classifier: Classifier = turn.options.protocol
        outcomes = classifier.read(answer, view)
        for outcome in outcomes:
            if isinstance(outcome, Fail):
                raise outcome.error
        return outcomes

    def _repair(self, turn: Turn, message: Message, error: AnswerError) -> None:
        """Ask again with the error, a bounded number of times; then it is the turn's failure."""
        if turn.progress.repairs >= turn.limits.repairs:
            raise _given_up(error, turn.progress.repairs)
        turn.progress.repairs += 1
        self._follow_up(message, REPAIR.format(reason=error.reason.rstrip(".")), message.stage)

    def _follow_up(self, message: Message, note: str, stage: str | None) -> None:
        """Go on with the turn, with a note at the conversation's end."""
        self.inbox.put_followup(message.caused(SYSTEM, (Text(note),) if note else (), stage=stage))

    # --- reply and act -------------------------------------------------------------------

    async def act(
        self, context: SessionContext, turn: Turn, message: Message, outcomes: Sequence[Outcome]
    ) -> None:
        """Act on the outcomes in their order: state, events, routing, conversation, and what the turn goes on with."""
        further = []
        for place, outcome in enumerate(outcomes):
            if type(outcome) is Say:
                continue
            if isinstance(outcome, Change):  # once: it may have been done before a restart
                context.state.dispatch(outcome.action, once=f"{turn.answer.id}/{place}")
            elif isinstance(outcome, (CallTools, Continue, Finish)):
                further.append(outcome)
        if len(further) < len(outcomes) and (
            deliveries := to_deliveries(
                outcomes, turn.answer.id, turn.progress.usage, context.conversation.origin
            )
        ):
            await self.reply(context, turn, deliveries)
        if further:
            await self._go_on(context, turn, message, further)

    async def reply(self, context: SessionContext, turn: Turn, deliveries: Sequence[Delivery]) -> None:
        """Let the session's handlers have what was answered, when it is written, and other agents what is theirs."""
        if self.guards.answers:
            deliveries = [await self._guarded(context, turn, each) for each in deliveries]
        if context.log is not None:
            is_watched = bool(self.hooks.listeners) or self.observer.stream.watched
            await _write_answer(context, context.log, turn, deliveries, is_watched=is_watched)
        for delivery in deliveries:
            await self.dispatcher.deliver(context, turn, delivery)
        for delivery in deliveries:
            if isinstance(delivery, Route):
                await self._hand_over(context, turn, delivery)

    async def _guarded(self, context: SessionContext, turn: Turn, delivery: Delivery) -> Delivery:
        """An answer as the guards leave it; all else as it is."""
        if not isinstance(delivery, Reply):
            return delivery
        return await self.guards.check_answer(context, turn, delivery, self.dispatcher)

    async def _go_on(
        self,
        context: SessionContext,
        turn: Turn,
        message: Message,
        further: Sequence[CallTools | Continue | Finish],
    ) -> None:
        """Bring about the turn's next message, unless it is to end; tools come before going on without."""
        if turn.answer.is_only_read and context.log is not None:
            turn.answer.is_only_read = False
            await context.log.flush()
        due = further[0] if len(further) == 1 else _first_due(further)
        if isinstance(due, CallTools):
            results = await self.calling.run(context, turn, message, due.calls, stage=due.stage)
            if results is not None:
                self.inbox.put_followup(results)
        elif isinstance(due, Continue):
            for outcome in further:
                if isinstance(outcome, Continue):
                    self._follow_up(message, outcome.note, outcome.stage)

    async def _is_answered(self, context: SessionContext, turn: Turn, message: Message) -> bool:
        """Let the agent answer that has the session now; False where none has it any more."""
        receivers = self.receivers
        assert receivers is not None  # noqa: S101 - they are due
        if self.guards.messages and message is turn.message:
            await self.guards.ask_beside(context, turn, self.dispatcher, trio.lowlevel.checkpoint)
        turn.control.expose()
        try:
            reply = await receivers.answer(context, turn)
        finally:
            turn.control.cover()
        turn.check()
        if reply is None:
            return False
        await self.reply(context, turn, [reply])
        if self.hooks.listeners:
            await self.hooks.tell(context, turn, self.dispatcher)
        return True

    async def _hear_again(self, context: SessionContext, turn: Turn) -> None:
        """Deliver what another agent had answered when the process ended."""
        last = context.conversation.last_message
        assert last is not None  # noqa: S101 - it is that answer
        reply = None if self.receivers is None else await self.receivers.answer(context, turn)
        await self.reply(context, turn, [Reply(id=last.id, text=last.text) if reply is None else reply])

    async def _hand_over(self, context: SessionContext, turn: Turn, route: Route) -> None:
        """Let another agent answer; its reply is this session's too."""
        turn.control.expose()
        try:
            reply = await self.router(context, turn, route)
        finally:
            turn.control.cover()
        turn.check()
        if reply is not None:
            if self.guards.answers:
                reply = await self.guards.check_answer(context, turn, reply, self.dispatcher)
            if context.log is not None:
                context.log.tell([told_elsewhere(reply)], turn.checkpoint)
                await context.log.flush()
            await self.dispatcher.deliver(context, turn, reply)


def _first_due(further: Sequence[CallTools | Continue | Finish]) -> CallTools | Continue | Finish:
    """What goes before the others: the end, or all tools together, or what is gone on with."""
    if ends := [outcome for outcome in further if isinstance(outcome, Finish)]:
        return ends[0]
    if tools := [outcome for outcome in further if isinstance(outcome, CallTools)]:
        return CallTools([call for outcome in tools for call in outcome.calls], tools[-1].stage)
    return further[0]


async def _write_answer(
    context: SessionContext, log: SessionLog, turn: Turn, deliveries: Sequence[Delivery], *, is_watched: bool
) -> None:
    """Write what is about to be heard; with the end of the turn where nobody here hears it, and others read it in the journal."""
    answer = context.conversation.last_message
    if answer is not None and not is_said(deliveries, answer):
        log.tell(told_records(deliveries, answer), turn.checkpoint)
    is_heard = is_watched or turn.listeners or context.task is not None or context.is_heard or log.is_relaxed
    turn.answer.is_only_read = not (is_heard or any(isinstance(each, Route) for each in deliveries))
    if turn.answer.is_only_read:
        log.flush_soon()
    else:
        await log.flush()
        context.mail.is_only_read = False


def _given_up(error: AnswerError, repairs: int) -> AnswerError:
    """Word the error of an answer that was asked for again in vain; `reason` stays what was wrong with the last one."""
    tries = "once" if not repairs else f"{repairs + 1} times"
    answered = f", and answered at last {quoted(error.raw)}" if error.raw else ""
    text = (
        f"{error.reason} (the model was asked {tries}{answered}): make the form or its description simpler, take a model that "
        "follows it better, or allow more tries with Limits(repairs=...)"
    )
    error.args = (text,)
    return error


def _entering(message: Message, turn: Turn) -> Appended | Said:
    """Build the record of a message that enters the conversation."""
    if message is turn.message:
        limits = NO_LIMITS if turn.budget is None else turn.budget.own.limits
        return make_appended(message_id=message.id, joins=bool(turn.joined), limits=limits, at=time.time())
    return make_said(message=message, calls=turn.progress.calls, repairs=turn.progress.repairs)
