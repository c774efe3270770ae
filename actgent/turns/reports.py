"""What the log is told where no handler hears of it: once, with what to do, and with the traceback of a program's own code.

Where a runtime redacts texts (`open_runtime(redact=...)`), errors are told by class and place alone.
"""

import os
import pathlib
from collections.abc import Callable
from types import TracebackType

import attrs

from actgent.approvals import Approval
from actgent.errors import (
    ConfigurationError,
    ForeignExit,
    HandlerFailed,
    Interrupted,
    ModelError,
    ToolError,
    UnusableResult,
    UsageError,
)
from actgent.messages import Failure, ToolCall
from actgent.sessions.context import SessionContext
from actgent.sessions.handlers import Handler, HandlerKind, name_of
from actgent.sessions.turn import Turn
from actgent.sessions.waiting.turn_future import TurnFuture
from actgent.support.foreign import advice_on, place_of
from actgent.support.logs import Each, logger_of
from actgent.tools.outputs.results import worded

_log = logger_of(__name__)

_PACKAGE = str(pathlib.Path(__file__).parents[1]) + os.sep
_Traced = tuple[type[BaseException], BaseException, TracebackType]
_HOW: dict[str, str] = {
    "conversation": "read session.history for what was said",
    "event": "they stand in session.history",
    "tool_result": "they stand in session.history",
    "routing": "they are not told again",
}


@attrs.define(eq=False)
class Reports:
    """What is written to the log for one agent."""

    agent: str
    debug: bool = False
    """True if failures are told that somebody hears of, too, each with its traceback."""
    is_redacted: bool = False
    asks_elsewhere: Callable[[], bool] = bool
    """Whether people are asked in another way than by handlers, e.g. over HTTP."""

    # --- handlers ------------------------------------------------------------------------

    def handler_failed(self, context: SessionContext, handler: Handler, error: BaseException) -> None:
        """A handler or hook raised, and no other one hears of failures."""
        own = not isinstance(error, HandlerFailed)
        _log.error(
            "agent %s, session %s: handler %s failed: %s",
            self.agent,
            Each(context.id),
            name_of(handler),
            Each(self._words(error)),
            exc_info=self._trace(error) if own else None,
        )

    def attached_late(self, context: SessionContext, kind: HandlerKind) -> None:
        """The first handler of its kind comes when something of that kind has gone to nobody."""
        _log.warning(
            "agent %s, session %s: on_%s was attached after something had been delivered to nobody: attach it before "
            "chat() and wait_idle(), or in agent.on_session; %s",
            self.agent,
            Each(context.id),
            kind,
            _HOW[kind],
        )

    # --- turns ---------------------------------------------------------------------------

    def unheard_failure(self, context: SessionContext, failure: Failure) -> None:
        """A message ended as a failure that neither a handler nor a caller hears of."""
        if failure.kind == "stopped":
            return
        if isinstance(failure.error, Interrupted):  # a thousand at once are one record, and their number
            _log.warning(
                "agent %s: a message ended without an answer, since an urgent one or interrupt() stopped its turn; "
                "attach session.on_exception to hear of each",
                self.agent,
            )
            return
        _log.warning(
            "agent %s, session %s: message %s ended as %s failure: %s; attach session.on_exception to deal with it",
            self.agent,
            Each(context.id),
            Each(failure.message_id),
            failure.kind,
            Each(self._words(failure.error)),
            exc_info=None if _is_of_provider(failure.error) else self._trace(failure.error),
        )

    def heard_failure(self, context: SessionContext, failure: Failure) -> None:
        """With `debug`: a failure that somebody hears of."""
        _log.warning(
            "agent %s, session %s: message %s ended as %s failure: %s",
            self.agent,
            Each(context.id),
            Each(failure.message_id),
            failure.kind,
            Each(self._words(failure.error)),
            exc_info=self._trace(failure.error),
        )

    def stream_ended(self, context: SessionContext, future: TurnFuture) -> None:
        """A stream was read to its end and no exception came of it, though there was no answer."""
        failure = future.failure
        if failure is not None:
            if failure.kind not in ("stopped", "interrupted") and not context.handlers.any_of("exception"):
                _log.warning(
                    "agent %s, session %s: a stream ended as %s failure: %s; it is the stream's last delivery: raise the "
                    "error of each Failure, or attach session.on_exception",
                    self.agent,
                    Each(context.id),
                    failure.kind,
                    Each(self._words(failure.error)),
                    exc_info=None if _is_of_provider(failure.error) else self._trace(failure.error),
                )
        elif (error := future.suspended) is not None and not context.handlers.any_of("approval"):
            _log.warning(
                "agent %s: a stream ended without an answer, since a call of tool %s waits for a person: decide with "
                "agent.answer(approval, Approve()) inside of agent.follow(session), which reads on, or with agent.resume()",
                self.agent,
                ", ".join(error.tools),
            )

    def approval_unheard(self, context: SessionContext, turn: Turn, approval: Approval) -> None:
        """Warn if neither a handler, nor a caller, nor those of the sessions above hear that a person is waited for."""
        if self.asks_elsewhere() or any(not each.is_patient for each in turn.listeners):
            return
        above: SessionContext | None = context
        while above is not None:
            if above.handlers.any_of("approval"):
                return
            above = above.parent
        _log.warning(
            "agent %s: a call of tool %s waits for a person, and nobody was asked: attach session.on_approval and decide with "
            "session.answer(approval, Approve()) or Reject(); agent.approvals() lists all that wait",
            self.agent,
            approval.tool_name,
        )

    # --- tools ---------------------------------------------------------------------------

    def tool_raised(self, context: SessionContext, call: ToolCall, error: Exception) -> None:
        """A tool raised what the model reads now; what its author did not word is told with the traceback.

        A `ToolError` is worded for the model, and is no mistake; `debug` tells it, too.
        """
        is_mistake = _is_mistake(error)
        if not (is_mistake or self.debug):
            return
        _log.warning(
            "agent %s, session %s: tool %s failed; the model reads the error: %s",
            self.agent,
            Each(context.id),
            call.name,
            Each(self._words(error)),
            exc_info=None if isinstance(error, UnusableResult) else self._trace(error),
        )

    def unusable_result(self, context: SessionContext, call: ToolCall, error: UnusableResult) -> None:
        """Log that the value of a tool has no JSON form. The call succeeded, and the model gets `str(value)`."""
        _log.warning(
            "agent %s, session %s: tool %s returned a value that is not JSON, so the model reads str() of it: %s",
            self.agent,
            Each(context.id),
            call.name,
            Each(self._words(error)),
        )

    # --- words ---------------------------------------------------------------------------

    def _words(self, error: BaseException) -> str:
        if self.is_redacted:
            error = _raised_by_program(error)
            return f"{type(error).__name__} at {place_of(error)}"
        words = worded(error)
        named = words if words.startswith(type(error).__name__) else f"{type(error).__name__}: {words}"
        advice = advice_on(error)
        return f"{named} ({advice})" if advice else named

    def _trace(self, error: BaseException) -> _Traced | None:
        """Return the error with its traceback from the first step into code that is not ours; None if it leads to none."""
        error = _raised_by_program(error)
        trace = None if self.is_redacted else error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            trace = trace.tb_next
        return None if trace is None else (type(error), error, trace)


def _raised_by_program(error: BaseException) -> BaseException:
    """Return the exception of the program that an error of actgent stands for; the error itself if it stands for none."""
    is_wrapper = isinstance(error, ForeignExit) or (isinstance(error, ModelError) and error.client_error)
    return error.__cause__ if is_wrapper and error.__cause__ is not None else error


def _is_of_provider(error: BaseException) -> bool:
    """Return True for a model error that no code of the program raised, so that a traceback explains nothing."""
    return isinstance(error, ModelError) and not error.client_error


def _is_mistake(error: Exception) -> bool:
    if isinstance(error, ToolError):
        return isinstance(error, UnusableResult)
    is_ours = type(error).__module__.partition(".")[0] == "actgent"
    return not is_ours or isinstance(error, (ForeignExit, ModelError, ConfigurationError, UsageError))
