"""What attaches handlers to sessions and hooks to agents, alike in all worlds."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypedDict, TypeVar, overload

from actgent.agents.agent import Agent
from actgent.agents.session import Session
from actgent.sessions.handlers import Handler
from actgent.turns.guards import GuardedKind

H = TypeVar("H", bound=Callable[..., Any])


class HandlerOptions(TypedDict, total=False):
    """Handlers of a session, by the names of the methods that attach them."""

    on_conversation: Handler | None
    on_event: Handler | None
    on_tool_result: Handler | None
    on_tool_progress: Handler | None
    on_exception: Handler | None
    on_routing: Handler | None
    on_token: Handler | None
    on_approval: Handler | None


class AttachesHandlers(ABC):
    """The registering methods of a `Session`. Handlers are called in the world of whoever attaches them."""

    @abstractmethod
    def _attach(self, method: Callable[..., Any], handler: Handler) -> None:
        """Attach a handler by a method of `Session`."""

    def on_conversation(self, handler: H) -> H:
        """Have `handler(reply)` called with each `Reply`."""
        self._attach(Session.on_conversation, handler)
        return handler

    def on_event(self, handler: H) -> H:
        """Have `handler(event)` called with each `Event`, the structured result of an instruction."""
        self._attach(Session.on_event, handler)
        return handler

    def on_tool_result(self, handler: H) -> H:
        """Have `handler(result)` called with each `ToolResult`, of failed tools too."""
        self._attach(Session.on_tool_result, handler)
        return handler

    def on_tool_progress(self, handler: H) -> H:
        """Have `handler(progress)` called with the latest `CallProgress` of each call while tools run."""
        self._attach(Session.on_tool_progress, handler)
        return handler

    def on_exception(self, handler: H) -> H:
        """Have `handler(failure)` called with each `Failure`."""
        self._attach(Session.on_exception, handler)
        return handler

    def on_routing(self, handler: H) -> H:
        """Have `handler(route)` called with each `Route`."""
        self._attach(Session.on_routing, handler)
        return handler

    def on_token(self, handler: H) -> H:
        """Have `handler(token)` called with each `Token` of a growing answer; from then on answers are streamed."""
        self._attach(Session.on_token, handler)
        return handler

    def on_approval(self, handler: H) -> H:
        """Have `handler(approval)` called with each `Approval`: a tool call that waits for a person, see `answer`."""
        self._attach(Session.on_approval, handler)
        return handler


class AttachesHooks(ABC):
    """The registering methods of an `Agent`. Hooks are called in the world of whoever gives them."""

    @abstractmethod
    def _hook(self, method: Callable[..., Any], hook: Handler, **options: Any) -> None:
        """Attach a hook by a method of `Agent`."""

    def on_session(self, fn: H) -> H:
        """Have `fn(session)` called before the first message of every session, also of those from a journal."""
        self._hook(Agent.on_session, fn)
        return fn

    def on_query(self, fn: H) -> H:
        """Have `fn(message)` called before a user's message is answered; the text that it returns goes with the call."""
        self._hook(Agent.on_query, fn)
        return fn

    def on_message(self, fn: H, *, priority: float | None = None) -> H:
        """Have `fn(message)` called with what users, models and tools say, as it enters a session's record."""
        self._hook(Agent.on_message, fn, priority=priority)
        return fn

    @overload
    def guard(self, fn: H, *, on: GuardedKind = "message") -> H: ...
    @overload
    def guard(self, fn: None = None, *, on: GuardedKind = "message") -> Callable[[H], H]: ...
    def guard(self, fn: Any = None, *, on: GuardedKind = "message") -> Any:
        """Have `fn` look at messages, answers or inputs, as `Agent.guard` does; one of inputs is called on trio's thread."""
        if fn is None:
            return partial(self.guard, on=on)
        self._hook(Agent.guard, fn, on=on)
        return fn
