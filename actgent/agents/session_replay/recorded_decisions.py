"""Decisions of a recorded session: the model request of each recorded answer, and the meaning of answers to this request."""

import copy
import json
from collections.abc import Callable, Iterable, Sequence

import attrs

from actgent.agents.agent import Agent
from actgent.journal.record_types import AgentMessageRecord, Record
from actgent.llm.model_interface import ModelRequest, ModelResponse
from actgent.messages import Event, Message, Route, ToolCall
from actgent.protocols.protocol_interface import (
    CallTools,
    Continue,
    Finish,
    Outcome,
    SendReply,
    TurnView,
    UpdateState,
)
from actgent.sessions.session_context import Turn
from actgent.tools.outputs.result_text import describe
from actgent.turns.agent_core import AgentCore
from actgent.turns.calls.model_calls import ModelCaller

from .replay_diff import Difference, first_difference
from .session_replayer import Recording, replay_with, script_of


@attrs.frozen(kw_only=True)
class AnswerReading:
    """Meaning of a model's answer: the calls, text and actions that the agent's protocol reads from it."""

    calls: tuple[ToolCall, ...] = ()
    """Tool calls of the answer, in order."""
    text: str = ""
    """Text of the reply to the user; empty without a reply."""
    data: object = None
    """Structured data of the reply; None without data."""
    actions: tuple[str, ...] = ()
    """Other outcomes of the answer as text: events, routes, state changes, and the next stage."""
    error: str = ""
    """Reason why the agent cannot use the answer, e.g. a refusal; empty if the agent can use it."""

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> "AnswerReading":
        """Summarize the protocol outcomes of a model answer. Two answers with the same decision give equal summaries."""
        calls, replies, actions = list[ToolCall](), list[SendReply](), list[str]()
        for outcome in outcomes:
            match outcome:
                case CallTools():
                    calls += outcome.calls
                case SendReply():
                    replies.append(outcome)
                case _:
                    actions.append(_describe_outcome(outcome))
        text = "\n".join(reply.text for reply in replies)
        data = next((reply.data for reply in replies if reply.data is not None), None)
        return cls(calls=tuple(calls), text=text, data=data, actions=tuple(filter(None, actions)))


def _describe_outcome(outcome: Outcome) -> str:
    """Return a protocol outcome as text without ids and free text; empty if the outcome only ends the turn."""
    match outcome:
        case Event():
            return f"event {outcome.name} {_canonical(outcome.data)}"
        case Route():
            return f"route to {outcome.action}"
        case UpdateState():
            return f"state {outcome.action!r}"
        case Continue():
            return f"continue at stage {outcome.stage}"
        case Finish():
            return ""
    return repr(outcome)


def call_key(call: ToolCall) -> tuple[str, str]:
    """Return the tool name and the arguments as canonical JSON, which are equal for equal calls of a recording."""
    return call.name, call.arguments if isinstance(call.arguments, str) else _canonical(call.arguments)


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=repr)


# --- the requests of a recording ----------------------------------------------------------


@attrs.frozen(kw_only=True)
class RecordedDecision:
    """A recorded answer of a model, with the request that the agent's current code builds for it."""

    step: int
    """Number of the journal record with the answer, from 1."""
    answer: ModelResponse
    """The recorded answer of the model."""
    chat: ModelRequest
    """Model request that the agent's current code builds at this point, without a deadline."""
    role: str
    """Role of the called model, a key of `Agent(models=)`."""
    timeout: float
    """Maximum seconds of the model call, from the limits of the turn."""
    _reader: Callable[[ModelResponse], AnswerReading] = attrs.field(repr=False)

    def read(self, answer: ModelResponse) -> AnswerReading:
        """Return the tool calls, texts and actions that the agent's protocol finds in a model answer.

        No call or action is executed.
        """
        return self._reader(answer)


@attrs.frozen
class SessionDecisions:
    """Recorded decisions of one session, up to the first difference of the agent's current code."""

    decisions: tuple[RecordedDecision, ...]
    """Decisions in the order of their records."""
    missing: int
    """Number of recorded answers after the first difference, for which no decision is returned."""
    difference: Difference | None
    """First difference between the replay and the recording, apart from prompts; None if there is none."""


async def find_decisions(
    recording: Recording, agent: Agent, *, system: str | None = None
) -> SessionDecisions:
    """Replay a session with the current code of an agent, and return the request of each recorded answer.

    No model is called, and no tool runs. If the code differs from the recording, the decisions before the difference are returned.

    Args:
        recording: Records of the session.
        agent: Agent whose code builds the requests, in a copy.
        system: System prompt of the session; None uses the agent's prompt, or the recorded prompt of the session.
    """
    script = script_of(recording.records)
    requests: list[_Request] = []

    def collect(core: AgentCore) -> None:
        fields = {name: getattr(core.models, name) for name in attrs.fields_dict(ModelCaller)}
        core.models = _RequestCollector(**fields, core=core, requests=requests)

    replayed, states = await replay_with(
        recording, agent, recording.model(), run_tools=False, system=system, set_up=collect
    )
    difference = first_difference(recording.records, replayed, states, prompts=False)
    end = len(recording.records) + 1 if difference is None else difference.step
    steps = iter(_answer_steps(recording.records))
    found, total = list[RecordedDecision](), 0
    for number, outcome in enumerate(script):
        if not isinstance(outcome, ModelResponse):
            continue
        total += 1
        step = next(steps)
        if number < len(requests) and step < end:
            found.append(requests[number].decision(step, outcome))
    return SessionDecisions(tuple(found), total - len(found), difference)


def _answer_steps(records: Sequence[Record]) -> Iterable[int]:
    """Return the numbers, from 1, of the records that contain an answer of a model."""
    return (
        n for n, record in enumerate(records, 1) if isinstance(record, AgentMessageRecord) and record.stop
    )


@attrs.frozen(kw_only=True)
class _Request:
    """A model request of a replay, with the data for reading answers to it."""

    core: AgentCore
    turn: Turn
    view: TurnView
    message: Message
    """Message of the agent with empty content.
    The protocol reads a model answer from a copy of this message with the answer as content.
    """
    chat: ModelRequest
    role: str

    def decision(self, step: int, answer: ModelResponse) -> RecordedDecision:
        return RecordedDecision(
            step=step,
            answer=answer,
            chat=self.chat,
            role=self.role,
            timeout=self.turn.limits.model_timeout,
            reader=self._read,
        )

    def _read(self, answer: ModelResponse) -> AnswerReading:
        message = attrs.evolve(self.message, parts=answer.parts, cut=answer.stop == "length")
        view = attrs.evolve(self.view, record=(*self.view.record, message))
        turn = copy.copy(self.turn)
        turn.budget = None
        try:
            return AnswerReading.of(self.core.read(turn, view, answer, answer.tool_calls))
        except Exception as error:  # noqa: BLE001 - a protocol of the user may raise anything
            return AnswerReading(error=describe(error))


@attrs.define(eq=False, kw_only=True)
class _RequestCollector(ModelCaller):
    """Model caller of a replay that adds each model request to `requests`, and then returns the recorded answer."""

    core: AgentCore
    requests: list[_Request]

    async def ask(
        self, turn: Turn, message: Message, chat: ModelRequest, model: str, prompt: str
    ) -> tuple[ModelResponse, tuple[ToolCall, ...]]:
        view = self.core._view(turn, message)  # noqa: SLF001
        kept = attrs.evolve(
            view, record=tuple(view.record), state=dict(view.state), calls=turn.progress.calls + 1
        )
        self.requests.append(
            _Request(
                core=self.core,
                turn=turn,
                view=kept,
                message=self._make_message(turn, (), message, "end"),
                chat=attrs.evolve(chat, watch=None),
                role=model,
            )
        )
        return await super().ask(turn, message, chat, model, prompt)
