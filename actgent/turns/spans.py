"""Turns as spans: one for each activation, from when a turn begins or goes on until it ends or waits for people."""

import time
from collections.abc import Callable
from typing import Literal

import attrs

from actgent.messages import Message
from actgent.sessions.turn import Turn
from actgent.support import span_names as names
from actgent.support.tracing import (
    ActiveTrace,
    Attribute,
    OpenSpan,
    Tracing,
    active_trace,
    error_type,
)

Activation = Literal["begin", "person", "restart"]
Key = tuple[str, str]
"""A session and the message that a turn is about."""


@attrs.define(eq=False)
class _Activated:
    """The newest activation of a turn that is not over."""

    span: OpenSpan
    ended_as: Activation | None = None
    """What the next one will be; None as long as this one is under way."""


@attrs.define(eq=False)
class TurnSpans:
    """The spans of one agent's turns."""

    agent: str
    tracing: Tracing
    _turns: dict[Key, _Activated] = attrs.field(factory=dict)
    _deciders: dict[str, list[str]] = attrs.field(factory=dict)
    """By sessions whose turns wait: the work in which people decided."""

    def begin(self, turn: Turn) -> None:
        """A turn runs from now on in the calling task, for the first time or again."""
        message = turn.message
        before = self._turns.get(_key(message))
        why: Activation = "begin"
        if before is not None and before.ended_as is not None:
            why = before.ended_as
        elif turn.checkpoint is not None:
            why = "restart"
        deciders = self._deciders.pop(message.session_id, [])
        common: dict[str, Attribute] = {
            names.AGENT: self.agent,
            names.CONVERSATION: message.session_id,
        }
        span = self.tracing.begin(
            f"{names.INVOKE_AGENT} {self.agent}",
            {**common, **_facts(message, why)},
            parent=message.traceparent or "",
            links=[
                *(each.traceparent for each in turn.joined),
                *([] if before is None else [before.span.traceparent]),
                *deciders,
            ],
        )
        self._turns[_key(message)] = _Activated(span)
        span.make_current()
        active_trace.set(ActiveTrace(self.tracing, common, lambda: _why_stopped(turn)))

    def suspend(self, turn: Turn) -> None:
        """A turn waits for people; the next activation follows this one."""
        self._pause(turn, "person", error="")

    def cut(self, turn: Turn) -> None:
        """The agent failed in the middle of a turn, which goes on with its next start."""
        self._pause(turn, "restart", error="actor")

    def _pause(self, turn: Turn, why: Activation, *, error: str) -> None:
        activated = self._turns.get(_key(turn.message))
        if activated is not None and activated.ended_as is None:
            activated.ended_as = why
            activated.span.end(error=error)

    def end(self, turn: Turn) -> None:
        """A turn is over."""
        activated = self._turns.pop(_key(turn.message), None)
        self._deciders.pop(turn.message.session_id, None)
        if activated is None or activated.ended_as is not None:
            return
        usage, control = turn.progress.usage, turn.control
        facts: dict[str, Attribute] = {
            names.TURN_CALLS: turn.progress.calls,
            names.TURN_TOOL_CALLS: turn.progress.tool_calls,
            names.TURN_INPUT_TOKENS: usage.input_tokens,
            names.TURN_OUTPUT_TOKENS: usage.output_tokens,
        }
        if usage.cost:
            facts[names.TURN_COST] = usage.cost
        error = "" if control.error is None else error_type(control.error, control.blame)
        activated.span.end(facts, error=error)

    def leave(self, is_left: Callable[[str], bool]) -> None:
        """Sessions are not here any more: nothing follows what waits in them. Turns that still run end by themselves."""
        for key in [each for each, turn in self._turns.items() if turn.ended_as and is_left(each[0])]:
            del self._turns[key]
        for session_id in [each for each in self._deciders if is_left(each)]:
            del self._deciders[session_id]

    def note_decision(self, session_id: str) -> None:
        """Somebody decides what a session's turn waits for, in the work that is under way where this is called."""
        if (decider := self.tracing.current()) is not None:
            self._deciders.setdefault(session_id, []).append(decider)

    def note_interruption(self, turn: Turn, by: Message) -> None:
        """A message stops a turn."""
        if (activated := self._turns.get(_key(turn.message))) is not None:
            activated.span.link(by.traceparent)


def _key(message: Message) -> Key:
    return message.session_id, message.id


def _facts(message: Message, why: Activation) -> dict[str, Attribute]:
    facts: dict[str, Attribute] = {
        names.OPERATION: names.INVOKE_AGENT,
        names.MESSAGE: message.id,
        names.PRIORITY: message.priority.name.lower(),
        names.ACTIVATION: why,
    }
    if why == "begin":
        facts[names.QUEUE_SECONDS] = max(0.0, time.time() - message.created_at)
    return facts


def _why_stopped(turn: Turn) -> str:
    """Name what cancels the work of a turn; nothing of its own where its agent stops."""
    stop = turn.control.stop
    return "stopped" if stop is None else error_type(stop)
