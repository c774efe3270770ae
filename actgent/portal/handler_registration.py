"""Methods that register handlers on sessions and hooks on agents, shared by all portal classes."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypedDict, TypeVar, overload

from actgent.agents.agent import Agent
from actgent.agents.keyword_argument_types import SessionOptions
from actgent.sessions.session_handlers import Handler
from actgent.tools.tool_interface import DepsT
from actgent.turns.message_and_answer_guards import GuardedKind

H = TypeVar("H", bound=Callable[..., Any])


class HandlerOptions(TypedDict, total=False):
    """Handlers of a session, by the name of the `Session` method that registers them; None registers no handler."""

    on_conversation: Handler | None
    """Handler that is called with each `Reply`."""
    on_event: Handler | None
    """Handler that is called with each `Event`."""
    on_tool_result: Handler | None
    """Handler that is called with each `ToolResult`, also of failed tool calls."""
    on_tool_progress: Handler | None
    """Handler that is called with the latest `CallProgress` of each running tool call."""
    on_exception: Handler | None
    """Handler that is called with each `Failure`."""
    on_routing: Handler | None
    """Handler that is called with each `Route`: an answer in which the model chose an action of a `RouterAgent`."""
    on_token: Handler | None
    """Handler that is called with each `Token`. If it is registered, answers are streamed."""
    on_approval: Handler | None
    """Handler that is called with each `Approval`, a tool call that waits for a decision."""


class SessionAndHandlerOptions(SessionOptions[DepsT], HandlerOptions, Generic[DepsT], total=False):
    """Keyword arguments of `create_session` of agents in a portal, except `session_id` and `parent`."""


class AttachesHooks(ABC):
    """Methods that register hooks on an `Agent`. A hook runs in the threads or event loop of the code that registers it."""

    @abstractmethod
    def _hook(self, method: Callable[..., Any], hook: Handler, **options: Any) -> None:
        """Register a hook with a method of `Agent`, such as `Agent.on_message`."""

    def on_session(self, fn: H) -> H:
        """Register a hook `fn(session)`, which is called before the first message of every new or resumed session.

        Return `fn`.
        """
        self._hook(Agent.on_session, fn)
        return fn

    def on_query(self, fn: H) -> H:
        """Register a hook `fn(message)`, which is called before a user's message is answered.

        The text that it returns is added to the model call.

        Return `fn`.
        """
        self._hook(Agent.on_query, fn)
        return fn

    def on_message(self, fn: H, *, priority: float | None = None) -> H:
        """Register a hook `fn(message)`, which is called with each message of users, models and tools that is added to a history.

        Return `fn`.

        The message is already in the journal. Hooks with a lower `priority` are called first, hooks with None last.
        """
        self._hook(Agent.on_message, fn, priority=priority)
        return fn

    @overload
    def guard(self, fn: H, *, on: GuardedKind = "message") -> H: ...
    @overload
    def guard(self, fn: None = None, *, on: GuardedKind = "message") -> Callable[[H], H]: ...
    def guard(self, fn: Any = None, *, on: GuardedKind = "message") -> Any:
        """Register a guard function for messages, answers or inputs. Arguments and errors are those of `Agent.guard`.

        A guard for inputs checks messages before they enter the inbox, and runs in trio's thread. Return `fn`, or a decorator
        if `fn` is None.
        """
        if fn is None:
            return partial(self.guard, on=on)
        self._hook(Agent.guard, fn, on=on)
        return fn
