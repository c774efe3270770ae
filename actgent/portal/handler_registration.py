"""Methods that register handlers on sessions and hooks on agents, shared by all portal classes."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypedDict, TypeVar, overload

from actgent.agents.agent import Agent
from actgent.agents.session import Session
from actgent.sessions.session_handlers import Handler
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


class AttachesHandlers(ABC):
    """Handler registration of a `Session`. A handler runs in the thread or event loop of the code that registers it."""

    @abstractmethod
    def _attach(self, method: Callable[..., Any], handler: Handler) -> None:
        """Register a handler with a method of `Session`, such as `Session.on_event`."""

    def on_conversation(self, handler: H) -> H:
        """Register `handler(reply)`, called with each `Reply`. Return the handler."""
        self._attach(Session.on_conversation, handler)
        return handler

    def on_event(self, handler: H) -> H:
        """Register `handler(event)`, called with each `Event`, the structured result of an instruction. Return the handler."""
        self._attach(Session.on_event, handler)
        return handler

    def on_tool_result(self, handler: H) -> H:
        """Register `handler(result)`, called with each `ToolResult`, also of failed tools. Return the handler."""
        self._attach(Session.on_tool_result, handler)
        return handler

    def on_tool_progress(self, handler: H) -> H:
        """Register `handler(progress)`, called with the latest `CallProgress` of each call while tools run. Return the handler."""
        self._attach(Session.on_tool_progress, handler)
        return handler

    def on_exception(self, handler: H) -> H:
        """Register `handler(failure)`, called with each `Failure`. Return the handler."""
        self._attach(Session.on_exception, handler)
        return handler

    def on_routing(self, handler: H) -> H:
        """Register `handler(route)`, called with each `Route`. Return the handler."""
        self._attach(Session.on_routing, handler)
        return handler

    def on_token(self, handler: H) -> H:
        """Register `handler(token)`, called with each `Token` of a partial answer. Answers are streamed from then on. Return the handler."""
        self._attach(Session.on_token, handler)
        return handler

    def on_approval(self, handler: H) -> H:
        """Register `handler(approval)`, called with each `Approval`, a tool call that waits for a decision; see `answer`. Return the handler."""
        self._attach(Session.on_approval, handler)
        return handler


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
