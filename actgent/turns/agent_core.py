"""`AgentCore`: the pipeline of a turn. It records the message, calls the model, parses the answer, carries it out and replies."""

import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

import attrs
import trio

from actgent.errors import (
    AnswerError,
    ContentFiltered,
    EmptyAnswer,
    InvalidState,
    ParseError,
    Refusal,
    TruncatedAnswer,
)
from actgent.errors.text_escaping import quoted
from actgent.journal.record_types import (
    NO_LIMITS,
    AgentMessageRecord,
    MessageAppendedRecord,
    OutcomeRecord,
    make_agent_message_record,
    make_message_appended_record,
)
from actgent.llm.model_interface import ModelRequest, ModelResponse, StopReason
from actgent.memory.memory_interface import Memory
from actgent.messages import Delivery, Event, Message, Reply, Route, Sender, Text, ToolCall, ToolSpec
from actgent.modes.system_notice_interface import Notice, NoticeSource
from actgent.modes.tool_permissions_by_mode import Modes
from actgent.protocols.answer_content_parsing import is_media_only
from actgent.protocols.prompt_rendering import PromptManager
from actgent.protocols.protocol_interface import (
    CallTools,
    Classifier,
    Continue,
    Fail,
    Finish,
    Outcome,
    Profile,
    PromptTemplate,
    SendReply,
    TurnView,
    UpdateState,
)
from actgent.sessions.conversation import OfferedTools
from actgent.sessions.pending.approval_ledger import PendingCalls
from actgent.sessions.pending.turn_checkpoint import TurnCheckpoint
from actgent.sessions.session_context import SessionContext, Turn, checkpoint_of
from actgent.sessions.session_record_writer import SessionLog
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fast_attrs_constructors import fast_constructor
from actgent.support.untrusted_text_delimiters import join_origins
from actgent.support.user_code_calls import convert_user_error
from actgent.tools.outputs.result_text import to_json_text
from actgent.tools.tool_registry import ToolRegistry

from .calls.model_calls import ModelCaller
from .calls.tool_calls import ToolCaller
from .calls.untrusted_result_isolation import filled_delivery
from .message_and_answer_guards import ApprovalNeeded, Guards
from .outcome_dispatcher import Dispatcher, to_deliveries
from .turn_event_publisher import Observer
from .turn_hooks import Hooks
from .turn_spans import ask_as_plan

SYSTEM = Sender("actgent", "system")
REPAIR = "Your last answer could not be used: {reason}. Answer again, in the form that was asked for."
BEGUN = (
    "Your last answer called tools, and the process ended while they ran: whether they took effect is not known. "
    "They are not called again by themselves. Answer again, in the form that is asked for now."
)
_make_calls, _make_chat, _make_view = (
    fast_constructor(CallTools),
    fast_constructor(ModelRequest),
    fast_constructor(TurnView),
)
_COMPLETE_STOPS: tuple[StopReason, ...] = ("end", "tool_calls", "pause")
"""Stop reasons of answers that are complete."""
Router = Callable[[Turn, Route], Awaitable[Reply | None]]
"""Function that lets the agent which a route names answer the turn's message. Returns the reply; None if it names no agent."""


class HandoffResponder(Protocol):
    """Interface of an object that lets another agent answer the messages of handed-off sessions."""

    def must_answer(self, turn: Turn) -> bool:
        """Return True if another agent has to answer the turn's message."""
        ...

    async def answer(self, turn: Turn) -> Reply | None:
        """Let the other agent answer the turn's message, and record its reply. Return None if the session is no longer handed off."""
        ...


@attrs.define(eq=False, kw_only=True, repr=False)
class AgentCore(FieldRepr):
    """Runs the turns of one agent: each message passes memory, prompts, model, classifier and handlers.

    A turn has one or more passes, each with a model call. A pass has five steps: `remember` the message, `ask` the model, `read` its answer, `act` on the outcomes, and `reply`.
    A subclass overrides a step and calls the inherited method with the same arguments; see `Agent.core_type`.
    """

    profile: Profile
    memory: Memory
    """Memory of the agent, which selects the messages that the model receives."""
    prompts: PromptManager
    """Renders the system prompt and the notes around the conversation."""
    models: ModelCaller
    calling: ToolCaller
    dispatcher: Dispatcher
    observer: Observer
    router: Router
    hooks: Hooks = attrs.field(factory=Hooks)
    modes: Modes | None = None
    guards: Guards = attrs.field(factory=Guards)
    bring_summary: Callable[[Turn], object] | None = None
    """Function that adds a finished summary to the conversation of a turn; None if the agent writes no summaries."""
    receivers: HandoffResponder | None = None
    """Object with which other agents answer handed-off sessions; None if the agent hands off no sessions."""

    # --- the turn ------------------------------------------------------------------------

    async def run_turn(self, turn: Turn) -> None:
        """Run a turn to its end: all model calls and tool calls, until the reply is delivered or approvals are needed.

        An error is stored in `turn.error`, and not raised.
        """
        context = turn.session
        messages = turn.next_messages
        messages.clear()  # a suspended turn continues with the results of its calls
        try:
            if turn.is_cut:
                turn.check()
            pending, turn.pending_approvals = turn.pending_approvals, None
            if pending is not None and pending.calls:
                await self._rerun_after_approval(turn, pending)
            elif turn.checkpoint is not None:
                await self._resume(turn, turn.checkpoint)
            else:
                if turn.joined:
                    self._remember_joined(turn)
                messages.append(turn.message)
            while messages:
                await self._pass(turn, messages.pop(0))
            if turn.stop is not None and turn.pending_approvals is None:
                turn.revoke_stop()  # the stop request came too late
        except ApprovalNeeded as needed:
            await self._request_guard_approval(turn, needed)
        except Exception as error:  # noqa: BLE001 - the boundary of a turn: other sessions must continue after any error
            turn.error = error
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - exit exceptions of user code, and cancellations
            turn.error = convert_user_error(raised, "turn of session", context.id)

    async def _request_guard_approval(self, turn: Turn, needed: ApprovalNeeded) -> None:
        """Request the approval that a message guard or an answer guard needs. The turn can be suspended after this call.

        After the decision, the turn resumes after its last recorded message. If the request fails, its error is stored in
        `turn.error`.
        """
        context = turn.session
        former, messages = turn.checkpoint, context.conversation.messages
        turn.checkpoint = checkpoint_of(turn, messages, state_number=context.state_number)
        if former is not None and turn.checkpoint is not None:
            turn.checkpoint.guarded.update(former.guarded)
            turn.checkpoint.delivered |= former.delivered
        try:
            await self.calling.approvals.ask_about(turn, needed.asked)
        except Exception as error:  # noqa: BLE001 - as in `run_turn`
            turn.error = error
        else:
            turn.pending_approvals = PendingCalls(turn.message, (), None)

    async def _resume(self, turn: Turn, resume: TurnCheckpoint) -> None:
        """Continue a turn at its checkpoint after a restart, up to the next message to process."""
        context = turn.session
        last = context.conversation.last_message
        assert last is not None  # noqa: S101 - the turn began with a message
        if not resume.stop:
            turn.results.extend(last.tool_results)
            await self.calling.deliver(turn)
            turn.next_messages.append(last)
            return
        turn.answer_id = last.id
        if last.sender.kind == "agent":
            await self._redeliver_recorded_reply(turn)
            return
        message = next(m for m in reversed(context.conversation.messages) if m.id == last.causation_id)
        answer = ModelResponse(parts=last.parts, stop=cast("StopReason", resume.stop))
        calls = () if last.cut else last.tool_calls
        context.conversation.open_calls = calls
        view = self._view(turn, message)
        view.state = context.state_at(resume.state_number)
        if not calls and self._is_lost(turn, view, answer, resume):
            _follow_up(turn, message, BEGUN, message.stage)
        else:
            await self._react(turn, view, answer, calls)

    def _is_lost(self, turn: Turn, view: TurnView, answer: ModelResponse, resume: TurnCheckpoint) -> bool:
        """Return True if the tool calls in a recorded answer cannot be restored after a restart.

        Either the recorded text is redacted, or the current protocol no longer parses it as tool calls.
        """
        if not (resume.unfinished_calls or resume.is_redacted):
            return False
        asks = self._asks_for_tools(turn, view, answer)
        return resume.is_redacted or not asks if resume.unfinished_calls else asks

    def _asks_for_tools(self, turn: Turn, view: TurnView, answer: ModelResponse) -> bool:
        """Return True if the protocol parses the text of an answer as tool calls."""
        try:
            return any(isinstance(each, CallTools) for each in self.read(turn, view, answer, ()))
        except AnswerError:
            return False

    async def _rerun_after_approval(self, turn: Turn, pending: PendingCalls) -> None:
        """Run the tool calls of an answer again after their approvals were decided."""
        await self.calling.run(turn, pending.message, pending.calls, stage=pending.stage)
        if self.hooks.listeners:
            await self.hooks.call_listeners(turn, self.dispatcher)

    def close_calls(self, turn: Turn) -> None:
        """Complete the conversation of a failing turn: append the partial answer, and a result for each tool call without a result."""
        self.models.keep_partial(turn)
        self.calling.close_open(turn)

    async def deliver_remaining(self, turn: Turn) -> None:
        """Deliver the tool results and messages of a failed turn that its handlers have not received yet."""
        await self.calling.deliver(turn)
        await self.hooks.call_listeners(turn, self.dispatcher)

    async def _pass(self, turn: Turn, message: Message) -> None:
        """Process one message of a turn: record it, call the model, and carry out the answer."""
        context = turn.session
        if self.modes is not None:
            self._apply_mode_changes(self.modes, turn, message)
        if self.bring_summary is not None:
            self.bring_summary(turn)
        if self.calling.registry.has_toolsets:
            offer_tools(turn, self.calling.registry)
        self.remember(context, turn, message)
        if self.hooks.queries or self.hooks.listeners:
            await self._run_hooks(turn, message)
        due = self.receivers is not None and self.receivers.must_answer(turn)
        if due and await self._let_handoff_agent_answer(turn, message):
            return
        view = self._view(turn, message)
        if self.hooks.staged:
            await self.hooks.gather_for(turn, view, self.dispatcher)
        if self.guards.messages and message is turn.message:
            asking = partial(self.ask, context, turn, view)
            answer, calls = await self.guards.ask_while_checking(turn, self.dispatcher, asking)
        else:
            answer, calls = await self.ask(context, turn, view)
        view.state, view.calls = context.seen_state, turn.progress.calls
        await self._react(turn, view, answer, calls)
        if self.hooks.listeners:
            await self.hooks.call_listeners(turn, self.dispatcher)

    async def _react(
        self, turn: Turn, view: TurnView, answer: ModelResponse, calls: tuple[ToolCall, ...]
    ) -> None:
        """Parse a model answer that is recorded in the conversation, and carry out its outcomes."""
        message = view.message
        try:
            outcomes = self.read(turn, view, answer, calls)
        except (ParseError, EmptyAnswer) as error:
            if isinstance(error, ParseError):
                error.raw = error.raw or answer.text
            self._repair(turn, message, error)
        else:
            repairs, turn.progress.repairs = turn.progress.repairs, 0
            turn.aside = ""
            try:
                await self.act(turn.session, turn, message, outcomes)
            except (
                InvalidState
            ) as error:  # raised by an UpdateState, which is applied before the other outcomes
                turn.progress.repairs = repairs
                self._repair(turn, message, ParseError(str(error), answer.text))

    async def _run_hooks(self, turn: Turn, message: Message) -> None:
        """Call the `on_query` functions for the user's messages of a new turn, and the `on_message` functions for new messages."""
        context = turn.session
        if message is turn.message:
            asked = [each for each in (*turn.joined, message) if each.sender.kind == "user"]
            texts = [await self.hooks.context_of(context, each, self.dispatcher) for each in asked]
            turn.aside = "\n\n".join(filter(None, (turn.aside, *texts)))
        await self.hooks.call_listeners(turn, self.dispatcher)
        turn.check()

    # --- modes ---------------------------------------------------------------------------

    def _apply_mode_changes(self, modes: Modes, turn: Turn, message: Message) -> None:
        """Change the mode if a user's message is a mode command, and notify the model of mode changes.

        No tool calls may be open. A rejected command adds a note to the next model call.
        """
        context = turn.session
        if modes.commands and message is turn.message:
            user_messages = [each for each in (*turn.joined, message) if context.is_from_user(each)]
            refused = [modes.apply_command(context.state, each) for each in user_messages]
            turn.aside = "\n".join(filter(None, refused))
        if add_notices(context, (modes,), calls=turn.progress.calls, repairs=turn.progress.repairs):
            self.observer.change_mode(context)

    async def write_mode_change(self, context: SessionContext) -> None:
        """Record a mode change that a program has made outside of a turn.

        If no turn is running, suspended or to be resumed, also append the notice for the model to the conversation.
        """
        is_idle = context.turn is None and context.checkpoint is None and not context.conversation.open_calls
        if is_idle and self.modes is not None and add_notices(context, (self.modes,)):
            self.observer.change_mode(context)
        if context.log is not None:
            await context.log.flush()
        await trio.lowlevel.checkpoint()

    # --- remember ------------------------------------------------------------------------

    def remember(self, context: SessionContext, turn: Turn, message: Message) -> None:
        """Append a message of the turn to the conversation and the journal. Tool results were appended before, and are skipped."""
        if context.conversation.last_message is not message:
            context.conversation.append(message, answered=True)
            if context.log is not None:
                context.log.add(_entry_record(message, turn))
                if message is turn.message and "growing" in context.handlers:
                    # Readers follow the session: write the start of the turn now, not with the first answer.
                    context.log.flush_soon(is_urgent=True)
        if turn.stop is not None:
            turn.check()
        if self.observer.stream.watched:
            self.observer.begin_pass(context, message)

    def _remember_joined(self, turn: Turn) -> None:
        """Append the additional messages that a turn answers to the conversation. The main message of the turn follows them."""
        context = turn.session
        for index, message in enumerate(turn.joined):
            context.conversation.append(message, answered=True)
            if context.log is not None:
                context.log.add(MessageAppendedRecord(message_id=message.id, joins=index > 0, at=time.time()))

    def _view(self, turn: Turn, message: Message) -> TurnView:
        """Build the view of the turn that the protocol reads for the model call about `message`."""
        context = turn.session
        offered = context.conversation.offered
        tools = self.calling.registry.specs if offered is None else offered.specs
        return _make_view(
            message=message,
            record=context.conversation.messages,
            state=context.seen_state,
            stage=message.stage,
            calls=turn.progress.calls,
            repairs=turn.progress.repairs,
            profile=self.profile,
            tools=(*tools, *turn.options.tools) if turn.options.tools else tools,
        )

    # --- ask -----------------------------------------------------------------------------

    def ask(
        self, context: SessionContext, turn: Turn, view: TurnView
    ) -> Awaitable[tuple[ModelResponse, tuple[ToolCall, ...]]]:
        """Call the model with the prompts and the messages that the memory selects.

        Return the answer and its native tool calls.
        """
        if turn.progress.calls:  # the first call is always allowed
            self.models.check_limit(turn)
        options = turn.options
        template: PromptTemplate = options.protocol
        request = template.request(view)
        if template.stages:
            turn.answer_metadata = template.answer_metadata(view)
        prompts, shown = self.prompts, context.conversation.current_view()
        prompt = prompts.user_prompt(context, view, request, shown) if prompts.user else request.tail
        if turn.aside or options.tail:
            prompt = "\n\n".join(filter(None, (turn.aside, options.tail, prompt)))
        system = options.system if options.system is not None else context.conversation.system
        chat = _make_chat(
            system=prompts.session_prompt(context, shown) if system is None else system,
            messages=prompts.messages(context, shown, prompt, is_paused=turn.is_paused),
            tools=view.tools,
            temperature=options.temperature,
            max_tokens=options.max_tokens,
            response_format=request.response_format,
            session=context.id,
            owner=context.owner.name if context.tree is None else context.quota_owner,
            priority=turn.message.priority,
        )
        known = "" if context.log is None else prompts.fingerprint(chat.system, chat.tools)
        model = request.model if options.model is None else options.model
        if self.models.fitter is None:
            answered = self.models.ask(turn, view.message, chat, model, known)
        else:
            again = partial(prompts.messages, context, shown, prompt, is_paused=turn.is_paused)
            answered = self.models.ask_fitting(turn, view.message, chat, again, model=model, prompt=known)
        if request.is_plan and self.observer.spans is not None:
            return ask_as_plan(self.profile.name, answered)
        return answered

    # --- read ----------------------------------------------------------------------------

    def read(
        self, turn: Turn, view: TurnView, answer: ModelResponse, calls: tuple[ToolCall, ...]
    ) -> Sequence[Outcome]:
        """Convert a model answer to the outcomes of the protocol. Native tool calls take precedence over text, in every protocol."""
        if turn.budget is not None and turn.budget.cut is not None:
            raise turn.budget.cut
        if answer.stop not in _COMPLETE_STOPS:
            _check_stop(answer)
        if calls:
            return [_make_calls(calls, view.stage)]
        turn.is_paused = answer.stop == "pause"
        if turn.is_paused:
            return [Continue(view.stage)]
        if _is_empty(answer):
            raise EmptyAnswer("the answer was empty")
        classifier: Classifier = turn.options.protocol
        outcomes = classifier.read(answer, view)
        for outcome in outcomes:
            if isinstance(outcome, Fail):
                raise outcome.error
        return outcomes

    def _repair(self, turn: Turn, message: Message, error: AnswerError) -> None:
        """Continue the turn with the text of `error`, so that the model corrects its answer. After the last allowed retry, raise."""
        if turn.progress.repairs >= turn.limits.output_retries:
            raise _exhausted_retries_error(error, turn.progress.repairs)
        turn.progress.repairs += 1
        _follow_up(turn, message, REPAIR.format(reason=error.reason.rstrip(".")), message.stage)

    # --- reply and act -------------------------------------------------------------------

    async def act(
        self, context: SessionContext, turn: Turn, message: Message, outcomes: Sequence[Outcome]
    ) -> None:
        """Carry out the outcomes of an answer to `message`: change the state, deliver events, routes and replies, continue the turn."""
        further = []
        for index, outcome in enumerate(outcomes):
            if type(outcome) is SendReply:
                continue
            if isinstance(outcome, UpdateState):  # `once`: the change may have been applied before a restart
                context.state.dispatch(outcome.action, once=f"{turn.answer_id}/{index}")
            elif isinstance(outcome, (CallTools, Continue, Finish)):
                further.append(outcome)
        if len(further) < len(outcomes) and (
            deliveries := to_deliveries(
                outcomes,
                turn.answer_id,
                turn.progress.usage,
                context.conversation.origin,
                context.conversation.via,
            )
        ):
            await self.reply(context, turn, deliveries)
        if further:
            await self._continue_turn(turn, message, further)

    async def reply(self, context: SessionContext, turn: Turn, deliveries: Sequence[Delivery]) -> None:
        """Record the deliveries of an answer, then call the session's handlers and let routed agents answer.

        Before the record, withheld values (untrusted text that the model did not see) replace their references in replies, and the
        answer guards check the replies.
        """
        policy = self.calling.policy
        if policy is not None and policy.untrusted == "isolate":
            registry = self.calling.registry
            deliveries = [
                filled_delivery(context, registry, each, turn.message.id)
                if isinstance(each, Reply | Event | Route)
                else each
                for each in deliveries
            ]
        if self.guards.answers:
            deliveries = [await self._apply_answer_guards(turn, each) for each in deliveries]
        if context.log is not None:
            is_watched = bool(self.hooks.listeners) or self.observer.stream.watched
            await _write_answer(turn, context.log, deliveries, is_watched=is_watched)
        for delivery in deliveries:
            await self.dispatcher.deliver(turn, delivery)
        for delivery in deliveries:
            if isinstance(delivery, Route):
                await self._answer_by_route(turn, delivery)

    async def _apply_answer_guards(self, turn: Turn, delivery: Delivery) -> Delivery:
        """Check a reply with the answer guards, and return it, possibly rewritten. Return other deliveries unchanged."""
        if not isinstance(delivery, Reply):
            return delivery
        return await self.guards.check_answer(turn, delivery, self.dispatcher)

    async def _continue_turn(
        self, turn: Turn, message: Message, further: Sequence[CallTools | Continue | Finish]
    ) -> None:
        """Create the next message of the turn from the outcomes `further` of a model answer, unless one of them is a `Finish`.

        Tool calls take precedence over `Continue`.
        """
        context = turn.session
        if turn.has_journal_readers_only and context.log is not None:
            turn.has_journal_readers_only = False
            await context.log.flush()
        due = further[0] if len(further) == 1 else _deciding_outcome(further)
        if isinstance(due, CallTools):
            await self.calling.run(turn, message, due.calls, stage=due.stage)
        elif isinstance(due, Continue):
            for outcome in further:
                if isinstance(outcome, Continue):
                    _follow_up(turn, message, outcome.note, outcome.stage)

    async def _let_handoff_agent_answer(self, turn: Turn, message: Message) -> bool:
        """Let the agent to which the session is handed off answer the turn. Return False if the session is no longer handed off."""
        receivers = self.receivers
        assert receivers is not None  # noqa: S101 - called only if receivers are due
        if self.guards.messages and message is turn.message:
            await self.guards.ask_while_checking(turn, self.dispatcher, trio.lowlevel.checkpoint)
        turn.expose()
        try:
            reply = await receivers.answer(turn)
        finally:
            turn.cover()
        turn.check()
        if reply is None:
            return False
        await self.reply(turn.session, turn, [reply])
        if self.hooks.listeners:
            await self.hooks.call_listeners(turn, self.dispatcher)
        return True

    async def _redeliver_recorded_reply(self, turn: Turn) -> None:
        """Deliver the reply of another agent, which was recorded before a restart, to the handlers and callers of the turn."""
        context = turn.session
        last = context.conversation.last_message
        assert last is not None  # noqa: S101 - the last message is the answer
        reply = None if self.receivers is None else await self.receivers.answer(turn)
        await self.reply(
            context,
            turn,
            [Reply(id=last.id, text=last.text, origin=last.origin, via=last.via) if reply is None else reply],
        )

    async def _answer_by_route(self, turn: Turn, route: Route) -> None:
        """Let the agent that `route` names answer the message of the turn, and deliver its reply in this session."""
        context = turn.session
        turn.expose()
        try:
            reply = await self.router(turn, route)
        finally:
            turn.cover()
        turn.check()
        if reply is not None:
            if self.guards.answers:
                reply = await self.guards.check_answer(turn, reply, self.dispatcher)
            if context.log is not None:
                context.log.add_outcomes([remote_reply_record(reply)], turn.checkpoint)
                await context.log.flush()
            await self.dispatcher.deliver(turn, reply)


def _follow_up(turn: Turn, message: Message, note: str, stage: str | None) -> None:
    """Continue the turn with a system message that has the text `note`. An empty note adds no text."""
    turn.next_messages.append(message.caused(SYSTEM, (Text(note),) if note else (), stage=stage))


def _is_empty(answer: ModelResponse) -> bool:
    """Return True if an answer has neither text nor media."""
    for part in answer.parts:
        if isinstance(part, Text) and part.text.strip():
            return False
    return not is_media_only(answer)


def _check_stop(answer: ModelResponse) -> None:
    """Raise an error if a model answer is refused, filtered or truncated.

    Raises:
        Refusal: The model declined to answer.
        ContentFiltered: The provider's content filter removed the answer.
        TruncatedAnswer: The answer was cut at the token limit.
    """
    match answer.stop:
        case "refusal":
            raise Refusal(f"the model declined to answer: {answer.text[:200]}".rstrip(": "), answer.text)
        case "filter":
            raise ContentFiltered("the provider's content filter removed the answer", answer.text)
        case "length":
            raise TruncatedAnswer(
                "the answer was cut off at the token limit: set a higher max_tokens=, or request a shorter answer",
                answer.text,
            )


def _deciding_outcome(further: Sequence[CallTools | Continue | Finish]) -> CallTools | Continue | Finish:
    """Return the outcome of a model answer that decides the next step of the turn.

    It is a `Finish`, else a `CallTools` with the calls of all outcomes, else the first `Continue`.
    """
    if ends := [outcome for outcome in further if isinstance(outcome, Finish)]:
        return ends[0]
    if tools := [outcome for outcome in further if isinstance(outcome, CallTools)]:
        return CallTools([call for outcome in tools for call in outcome.calls], tools[-1].stage)
    return further[0]


async def _write_answer(
    turn: Turn, log: SessionLog, deliveries: Sequence[Delivery], *, is_watched: bool
) -> None:
    """Record the deliveries of an answer durably before they are delivered.

    If no handler or caller receives the deliveries, do not wait for the write. The end of the turn is then part of the same write.
    `is_watched` is True if an `on_message` handler receives the answer.
    """
    context = turn.session
    answer = context.conversation.last_message
    if answer is not None and not _is_plain_reply(deliveries, answer):
        log.add_outcomes(delivery_records(deliveries, answer), turn.checkpoint)
    is_heard = (
        is_watched
        or turn.listeners
        or "conversation" in context.handlers
        or (context.handlers and context.handlers.any_of("event", "routing", "exception"))
        or context.task is not None
        or log.is_relaxed
    )
    turn.has_journal_readers_only = not (is_heard or any(isinstance(each, Route) for each in deliveries))
    if turn.has_journal_readers_only:
        log.flush_soon()
    else:
        await log.flush()
        context.has_journal_readers_only = False


def _is_plain_reply(deliveries: Sequence[Delivery], answer: Message) -> bool:
    """Return True if the only delivery is a reply with exactly the text and the label of the answer."""
    if len(deliveries) > 1:
        return False
    (reply,) = deliveries
    if type(reply) is not Reply or reply.data is not None or reply.message_type is not None:
        return False
    return reply.text == answer.text and reply.reasoning is None and not label_unlike_answer(reply, answer)


def _exhausted_retries_error(error: AnswerError, repairs: int) -> AnswerError:
    """Return the error for a turn whose last answer is still invalid after `repairs` retries.

    `error` is the error of this answer.
    """
    tries = "once" if not repairs else f"{repairs + 1} times"
    answered = f", and answered at last {quoted(error.raw)}" if error.raw else ""
    text = (
        f"{error.reason} (the model was asked {tries}{answered}): make the form or its description simpler, take a model that "
        "follows it better, or allow more tries with Limits(output_retries=...)"
    )
    error.args = (text,)
    return error


def _entry_record(message: Message, turn: Turn) -> MessageAppendedRecord | AgentMessageRecord:
    """Build the journal record of a message that a turn adds to the conversation."""
    if message is turn.message:
        limits = NO_LIMITS if turn.budget is None else turn.budget.own.limits
        return make_message_appended_record(
            message_id=message.id, joins=bool(turn.joined), limits=limits, at=time.time()
        )
    return make_agent_message_record(
        message=message, calls=turn.progress.calls, repairs=turn.progress.repairs
    )


# --- delivery records ------------------------------------------------------------------------

MIN_POSITION_CHARS = 24
"""Minimum length in characters of a text that is stored as a position in the answer."""


def delivery_records(deliveries: Sequence[Delivery], answer: Message) -> Iterator[OutcomeRecord]:
    """Yield the journal record of each reply, event and route of an answer. Other deliveries have no record."""
    for delivery in deliveries:
        match delivery:
            case Reply():
                name = delivery.message_type or ""
                yield _outcome_record(delivery, "reply", name, answer, text=delivery.text)
            case Event():
                yield _outcome_record(delivery, "event", delivery.name, answer)
            case Route():
                yield _outcome_record(delivery, "route", delivery.action, answer)


def remote_reply_record(reply: Reply) -> OutcomeRecord:
    """Return the journal record of a reply that another agent gave.

    It has no label: the message with this answer, which the session has appended before, has the label.
    """
    name = reply.message_type or ""
    return OutcomeRecord(
        id=reply.id,
        kind="reply",
        name=name,
        text=reply.text,
        data=to_json_text(reply.data),
        reasoning=to_json_text(reply.reasoning),
    )


def _outcome_record(
    delivery: Reply | Event | Route, kind: str, name: str, answer: Message, *, text: str | None = None
) -> OutcomeRecord:
    """Build the journal record of a delivery. Text and data that occur in the answer are stored as positions in it."""
    answer_text, data = answer.text, to_json_text(delivery.data)
    quoted = "" if text is None else json.dumps(text, ensure_ascii=False)[1:-1]
    plain_at = _text_range(text, answer_text)
    text_at, data_at = plain_at or _text_range(quoted, answer_text), _text_range(data, answer_text)
    return OutcomeRecord(
        id=delivery.id,
        kind=kind,
        name=name,
        text=None if text_at else text,
        data=None if data_at else data,
        answer=answer.id if text_at or data_at else "",
        text_at=text_at,
        data_at=data_at,
        is_quoted=bool(text_at and not plain_at),
        reasoning=to_json_text(delivery.reasoning) if isinstance(delivery, Reply) else None,
        via=label_unlike_answer(delivery, answer),
    )


def label_unlike_answer(delivery: Reply | Event | Route, answer: Message) -> str:
    """Return the information-flow label of a delivery as text for the journal; empty if the model's answer has the same label."""
    if (delivery.origin, delivery.via) == (answer.origin, answer.via):
        return ""
    return join_origins(delivery.origin, delivery.via)


def _text_range(text: str | None, answer_text: str) -> tuple[int, ...]:
    """Return the start and end index of a text in an answer, which the record stores in place of the text.

    The result is empty if the answer does not contain the text, or the text is too short to save space.
    """
    begin = -1 if text is None or len(text) < MIN_POSITION_CHARS else answer_text.find(text)
    return () if text is None or begin < 0 else (begin, begin + len(text))


# --- tool notices ----------------------------------------------------------------------------

MAX_NAMED_TOOLS = 50
"""Maximum number of tool names in one line of a notice."""


def offer_tools(turn: Turn, registry: ToolRegistry) -> None:
    """At the first turn of a session, store the list of tools for the model. At later turns, notify the model of changed tools.

    The stored list never changes, so that providers can cache the prompt.
    """
    context = turn.session
    offered = context.conversation.offered
    if offered is None:
        offered = context.conversation.offered = OfferedTools(registry.specs)
    if offered.version != registry.version:
        offered.version = registry.version
        source = ToolNotices(registry, offered.specs)
        add_notices(context, (source,), calls=turn.progress.calls, repairs=turn.progress.repairs)


@attrs.frozen(repr=False)
class ToolNotices(FieldRepr, NoticeSource):
    """Source of notices to the model about tools that were added or removed since the session's first turn."""

    name = "toolsets"
    _registry: ToolRegistry
    _offered: tuple[ToolSpec, ...]

    def due(self, state: Mapping[str, Any], last_mark: str | None) -> Sequence[Notice]:
        """Return a notice if the tools have changed since the notice with the mark `last_mark`; empty otherwise."""
        lines = self._lines()
        mark = (
            hashlib.blake2s("\n".join(lines).encode(), digest_size=8).hexdigest() if lines else "as offered"
        )
        if mark == last_mark or (last_mark is None and not lines):
            return ()
        return [
            Notice(mark, "\n".join(lines) or "All tools that you were offered are available as they were.")
        ]

    def _lines(self) -> list[str]:
        offered = {spec.name: spec for spec in self._offered}
        now = {tool.name: tool.spec for tool in self._registry if not tool.deferred}
        came = [name for name in now if name not in offered and name not in self._registry.mapped]
        gone = [name for name in offered if name not in now]
        changed = [name for name, spec in offered.items() if name in now and now[name] != spec]
        lines = [
            _line("Further tools are available now; find_tools describes them, call_tool runs them: ", came),
            _line("Tools that are not there any more: ", gone),
            _line("Tools that changed; find_tools describes their parameters now: ", changed),
            *(f"Tools of {name} are not available now." for name in self._registry.unavailable),
        ]
        return [line for line in lines if line]


def _line(text: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - MAX_NAMED_TOOLS} more" if len(names) > MAX_NAMED_TOOLS else ""
    return f"{text}{', '.join(names[:MAX_NAMED_TOOLS])}{more}."


def add_notices(
    context: SessionContext, sources: Sequence[NoticeSource], *, calls: int = 0, repairs: int = 0
) -> bool:
    """Append the due notices of `sources` to a conversation as system messages, and record them. Return True if one was due.

    `calls` and `repairs` are counters of the running turn, stored with each record.
    """
    is_due = False
    for source in sources:
        for notice in source.due(context.seen_state, context.conversation.last_notice(source.name)):
            message = _to_message(context, source, notice)
            context.conversation.append(message)
            if context.log is not None:
                context.log.add(AgentMessageRecord(message=message, calls=calls, repairs=repairs))
            is_due = True
    return is_due


def _to_message(context: SessionContext, source: NoticeSource, notice: Notice) -> Message:
    return Message(
        id=f"{source.name}/{notice.mark}/{len(context.conversation.messages)}",
        session_id=context.id,
        sender=Sender(source.name, "system"),
        parts=(Text(notice.text),),
        causation_id=notice.mark,
    )
