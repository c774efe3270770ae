"""`StepsAgent`: the agent of the `steps` protocol, and its `Conversation`."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, Literal, Unpack, overload

import trio

from actgent.agents.agent import Agent
from actgent.agents.keyword_argument_types import AgentOptions, FormT, MessageOptions, RunOptions
from actgent.agents.session import Session, context_of
from actgent.errors import ConfigurationError, UsageError
from actgent.messages import Content, DataT_co, Delivery, Message, Reply, Sender, Text, to_parts
from actgent.protocols.prompt_rendering import PromptManager
from actgent.protocols.steps_protocol import DEFAULT_ITERATIONS, Steps
from actgent.runtime.waits_between_sessions import sources_of_caller
from actgent.sessions.pending.turn_future import CallOptions
from actgent.sessions.pending.turn_output_stream import TurnReader, TurnStream
from actgent.tools.tool_interface import DepsT

from .stream_events import StepsEvent
from .streamed_run_state import AgentAnswer, AnswerReader
from .turn_event_conversion import StepsTurnStream


class StepsAgent(Agent[DataT_co, DepsT]):
    """An agent that makes a plan, takes steps with tool calls, and gives a final answer.

    Args:
        name: Name of the agent.
        output: Type or JSON Schema of the final answer.
        timezone: Time zone of the time that the model sees, an IANA name.
        final_answer_format: Format of the final answer, as text for the model.
        max_iterations: Maximum number of model calls of a turn. A turn that needs more fails with `LimitReached`. If
            `Limits(model_calls=)` is also set, the smaller limit applies.
        options: Arguments of `Agent`.

    Raises:
        ConfigurationError: An argument is invalid; the text names it.
    """

    @overload
    def __init__(
        self,
        name: str,
        *,
        output: type[DataT_co],
        timezone: str = "UTC",
        final_answer_format: str = "",
        max_iterations: int = DEFAULT_ITERATIONS,
        **options: Unpack[AgentOptions[DepsT]],
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        *,
        output: object = None,
        timezone: str = "UTC",
        final_answer_format: str = "",
        max_iterations: int = DEFAULT_ITERATIONS,
        **options: Unpack[AgentOptions[DepsT]],
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        output: object = None,
        timezone: str = "UTC",
        final_answer_format: str = "",
        max_iterations: int = DEFAULT_ITERATIONS,
        **options: Unpack[AgentOptions[DepsT]],
    ) -> None:
        given = options.setdefault(
            "protocol",
            Steps(timezone=timezone, final_answer_format=final_answer_format, max_iterations=max_iterations),
        )
        if not isinstance(given, Steps):
            raise ConfigurationError(
                "StepsAgent has a fixed protocol: for another protocol use Agent(protocol=...)"
            )
        self.steps = given
        super().__init__(name, output=output, **options)

    def set_timezone(self, name: str) -> None:
        """Set the time zone of the time that the model sees, from the next model call on.

        Raises:
            ConfigurationError: The time zone is unknown.
        """
        self.steps.set_timezone(name)

    def set_final_answer_format(self, description: str) -> None:
        """Set the description of the final answer's format for the model, from the next model call on."""
        self.steps.final_answer_format = description

    async def open_conversation(self, owner: Sender | str = "user") -> "Conversation[DataT_co, DepsT]":
        """Start a conversation, whose runs share one history until it is reset.

        Raises:
            NotRunning: The agent is not running.
        """
        return Conversation(self, await self.create_session(owner))

    @overload  # type: ignore[override] # it yields more kinds of deliveries
    def stream(
        self, content: Content, *, output: type[FormT], **options: Unpack[RunOptions[DepsT]]
    ) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[Delivery[FormT] | StepsEvent]]: ...
    @overload
    def stream(
        self, content: Content, *, output: None = None, **options: Unpack[RunOptions[DepsT]]
    ) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[Delivery[DataT_co] | StepsEvent]]: ...
    @overload
    def stream(
        self, content: Content, *, output: object, **options: Unpack[RunOptions[DepsT]]
    ) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[Delivery | StepsEvent]]: ...
    def stream(self, content: Content, *, output: Any = None, **options: Unpack[RunOptions[DepsT]]) -> Any:
        """Send a message and receive the deliveries of `Agent.stream`, and in addition the events of the steps.

        The events of the steps are missing if the session has moved to another process.
        """
        return super().stream(content, output=output, **options)

    def _make_stream(self, options: CallOptions, reader: TurnReader[Any]) -> TurnStream:
        return StepsTurnStream(options, reader=reader)

    @overload
    def stream_state(
        self, content: Content, *, output: type[FormT], **options: Unpack[RunOptions[DepsT]]
    ) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[AgentAnswer[FormT]]]: ...
    @overload
    def stream_state(
        self, content: Content, *, output: None = None, **options: Unpack[RunOptions[DepsT]]
    ) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[AgentAnswer[DataT_co]]]: ...
    @overload
    def stream_state(
        self, content: Content, *, output: object, **options: Unpack[RunOptions[DepsT]]
    ) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[AgentAnswer]]: ...
    @asynccontextmanager
    async def stream_state(
        self, content: Content, *, output: Any = None, **options: Unpack[RunOptions[DepsT]]
    ) -> AsyncGenerator[trio.abc.ReceiveChannel[AgentAnswer[Any]], None]:
        """Send a message, and receive an `AgentAnswer` with all data of the answer after each change.

        The options are those of `stream`. A failed run ends with `failure` set and `is_complete` False.
        """
        query = "".join(part.text for part in to_parts(content) if isinstance(part, Text))
        async with self.stream(content, output=output, **options) as events:
            yield AnswerReader(events, query)


class Conversation(Generic[DataT_co, DepsT]):
    """A sequence of runs of a `StepsAgent` that share one history."""

    def __init__(self, agent: StepsAgent[DataT_co, DepsT], session: Session[DataT_co]) -> None:
        self._agent = agent
        self._session = session
        self._system_prompt: str | None = None

    @property
    def session(self) -> Session[DataT_co]:
        """Session in which the runs of the conversation take place. `reset` replaces this session."""
        return self._session

    @property
    def history(self) -> tuple[Message, ...]:
        """All messages of the conversation, oldest first; a copy."""
        return self._session.history

    @overload
    async def run(
        self, content: Content, *, output: type[FormT], **options: Unpack[MessageOptions[DepsT]]
    ) -> Reply[FormT]: ...
    @overload
    async def run(
        self, content: Content, *, output: None = None, **options: Unpack[MessageOptions[DepsT]]
    ) -> Reply[DataT_co]: ...
    @overload
    async def run(
        self, content: Content, *, output: object, **options: Unpack[MessageOptions[DepsT]]
    ) -> Reply: ...
    async def run(
        self, content: Content, *, output: Any = None, **options: Unpack[MessageOptions[DepsT]]
    ) -> Reply[Any]:
        """Send a message and wait for the final answer. The options are those of `StepsAgent.run`.

        Raises:
            ActgentError: The error that ended the turn.
        """
        reply: Reply[Any] = await self._agent.run(content, session=self._session, output=output, **options)
        return reply

    @overload
    def stream(
        self, content: Content, *, output: type[FormT], **options: Unpack[MessageOptions[DepsT]]
    ) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[Delivery[FormT] | StepsEvent]]: ...
    @overload
    def stream(
        self, content: Content, *, output: None = None, **options: Unpack[MessageOptions[DepsT]]
    ) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[Delivery[DataT_co] | StepsEvent]]: ...
    @overload
    def stream(
        self, content: Content, *, output: object, **options: Unpack[MessageOptions[DepsT]]
    ) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[Delivery | StepsEvent]]: ...
    def stream(
        self, content: Content, *, output: Any = None, **options: Unpack[MessageOptions[DepsT]]
    ) -> Any:
        """Send a message and receive its deliveries, as `StepsAgent.stream` does."""
        return self._agent.stream(content, session=self._session, output=output, **options)

    @overload
    def stream_state(
        self, content: Content, *, output: type[FormT], **options: Unpack[MessageOptions[DepsT]]
    ) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[AgentAnswer[FormT]]]: ...
    @overload
    def stream_state(
        self, content: Content, *, output: None = None, **options: Unpack[MessageOptions[DepsT]]
    ) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[AgentAnswer[DataT_co]]]: ...
    @overload
    def stream_state(
        self, content: Content, *, output: object, **options: Unpack[MessageOptions[DepsT]]
    ) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[AgentAnswer]]: ...
    def stream_state(
        self, content: Content, *, output: Any = None, **options: Unpack[MessageOptions[DepsT]]
    ) -> Any:
        """Send a message, and receive a new `AgentAnswer` after each change of the answer. See `StepsAgent.stream_state`."""
        return self._agent.stream_state(content, session=self._session, output=output, **options)

    def add_message(self, role: Literal["user", "assistant", "system"], text: str) -> None:
        """Add a message to the history without an answer, e.g. from an earlier conversation.

        Raises:
            UsageError: A turn is running; its messages must stay together.
            ConfigurationError: The role is unknown, or the text is empty.
        """
        if role not in {"user", "assistant", "system"} or not text.strip():
            raise ConfigurationError(
                f"add_message() needs a role (user, assistant or system) and a string that is not empty; the role is {role!r}"
            )
        if self._session.status != "idle":
            raise UsageError(
                f"session {self._session.id} is {self._session.status}: add messages between runs"
            )
        context = context_of(self._session)
        via = sources_of_caller()
        context.append_unanswered(
            Message(session_id=context.id, sender=Sender(role, role), parts=(Text(text),), via=via)
        )

    def set_system_prompt(self, text: str) -> None:
        """Replace the system prompt of this conversation. The agent appends the format of answers, as with `system_prompt=`."""
        self._system_prompt = text
        prompts = PromptManager(self._agent.steps, self._agent.profile)
        context_of(self._session).set_system(prompts.with_form(text))

    async def reset(self) -> None:
        """Close the session and stop its running turn. Then start a new session with the same settings."""
        await self._session.aclose()
        self._session = await self._agent.create_session(self._session.owner)
        if self._system_prompt is not None:
            self.set_system_prompt(self._system_prompt)
