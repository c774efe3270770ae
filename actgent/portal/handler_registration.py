"""Methods that register handlers on sessions and hooks on agents, shared by all portal classes."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypedDict, TypeVar, overload

from actgent.agents.agent import Agent
from actgent.agents.keyword_argument_types import SessionOptions
from actgent.sessions.session_handlers import Handler
from actgent.tools.tool_interface import DepsT
from actgent.turns.content_guards import GuardedKind

H = TypeVar("H", bound=Callable[..., Any])


class HandlerOptions(TypedDict, total=False):
    """Handlers of a session, by the name of the method that registers them; None registers no handler."""

    on_conversation: Handler | None
    """Called with each `Reply`."""
    on_event: Handler | None
    """Called with each `Event`."""
    on_tool_result: Handler | None
    """Called with each `ToolResult`, also of failed tools."""
    on_tool_progress: Handler | None
    """Called with the latest `CallProgress` of each running call."""
    on_exception: Handler | None
    """Called with each `Failure`."""
    on_routing: Handler | None
    """Called with each `Route`."""
    on_token: Handler | None
    """Called with each `Token`; answers are streamed from then on."""
    on_approval: Handler | None
    """Called with each `Approval`, a tool call that waits for a decision."""


class SessionAndHandlerOptions(SessionOptions[DepsT], HandlerOptions, Generic[DepsT], total=False):
    """Keyword arguments of `create_session` of an agent in a portal, except `session_id` and `parent`."""


class AttachesHooks(ABC):
    """Hook registration of an `Agent`. A hook runs in the thread or event loop of the code that registers it."""

    @abstractmethod
    def _hook(self, method: Callable[..., Any], hook: Handler, **options: Any) -> None:
        """Register a hook with a method of `Agent`, such as `Agent.on_message`."""

    def on_session(self, fn: H) -> H:
        """Register `fn(session)`, called before the first message of every new or resumed session.

        Return the function.
        """
        self._hook(Agent.on_session, fn)
        return fn

    def on_query(self, fn: H) -> H:
        """Register `fn(message)`, called before a user's message is answered; its text is added to the model call.

        Return `fn`.
        """
        self._hook(Agent.on_query, fn)
        return fn

    def on_message(self, fn: H, *, priority: float | None = None) -> H:
        """Register `fn(message)`, called with each message of users, models and tools that is added to a history.

        Return `fn`.

        The message is in the journal by then. A lower `priority` is called first; None is called last.
        """
        self._hook(Agent.on_message, fn, priority=priority)
        return fn

    @overload
    def guard(self, fn: H, *, on: GuardedKind = "message") -> H: ...
    @overload
    def guard(self, fn: None = None, *, on: GuardedKind = "message") -> Callable[[H], H]: ...
    def guard(self, fn: Any = None, *, on: GuardedKind = "message") -> Any:
        """Register a guard of messages, answers or inputs. Arguments and errors are those of `Agent.guard`.

        A guard of inputs checks messages before they enter the inbox, and runs in trio's thread. Without
        `fn`, return a decorator.
        """
        if fn is None:
            return partial(self.guard, on=on)
        self._hook(Agent.guard, fn, on=on)
        return fn
