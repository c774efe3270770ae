"""Log records about failures that no handler or caller receives. They contain advice and the traceback of the user's code.

If the runtime redacts texts (`open_runtime(redact=...)`), errors are logged by class and source location only.
"""

import os
import pathlib
from collections.abc import Callable
from types import TracebackType

import attrs

from actgent.approvals import Approval
from actgent.errors import (
    ConfigurationError,
    HandlerFailed,
    Interrupted,
    InvalidToolResult,
    ModelError,
    ToolError,
    UsageError,
    UserCodeExit,
)
from actgent.messages import Failure, ToolCall
from actgent.sessions.pending.turn_future import TurnFuture
from actgent.sessions.session_context import SessionContext, Turn
from actgent.sessions.session_handlers import Handler, HandlerKind, name_of
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.safe_logging import LogVariable, logger_of
from actgent.support.user_code_calls import advice_for, source_location
from actgent.tools.outputs.result_text import error_text

_log = logger_of(__name__)

_PACKAGE = str(pathlib.Path(__file__).parents[1]) + os.sep
_Traced = tuple[type[BaseException], BaseException, TracebackType]
_HOW: dict[str, str] = {
    "conversation": "missed messages are in session.history",
    "event": "missed items are in session.history",
    "tool_result": "missed items are in session.history",
    "routing": "missed routes are not redelivered",
}


@attrs.define(eq=False, repr=False)
class FailureLogger(FieldRepr):
    """Logs one agent's unhandled failures, handlers that were attached too late, and tool errors."""

    agent: str
    debug: bool = False
    """True if failures that handlers or callers receive are also logged, with tracebacks."""
    is_redacted: bool = False
    shows_approvals: Callable[[], bool] = bool
    """Function that returns True if the program shows approvals to users without handlers, for example over HTTP."""

    # --- handlers ------------------------------------------------------------------------

    def log_handler_error(self, context: SessionContext, handler: Handler, error: BaseException) -> None:
        """Log the error of a handler or hook that no exception handler of the session receives."""
        own = not isinstance(error, HandlerFailed)
        _log.error(
            "agent %s, session %s: handler %s failed: %s",
            self.agent,
            LogVariable(context.id),
            name_of(handler),
            LogVariable(self._error_text(error)),
            exc_info=self._trace(error) if own else None,
        )

    def warn_late_handler(self, context: SessionContext, kind: HandlerKind) -> None:
        """Log a warning that the first handler of a kind was attached after deliveries of this kind were dropped."""
        _log.warning(
            "agent %s, session %s: on_%s was attached after deliveries without a handler: attach it before "
            "chat() and wait_idle(), or in agent.on_session; %s",
            self.agent,
            LogVariable(context.id),
            kind,
            _HOW[kind],
        )

    # --- turns ---------------------------------------------------------------------------

    def log_unhandled_failure(self, context: SessionContext, failure: Failure) -> None:
        """Log the failure of a message that no handler and no caller receives."""
        if failure.kind == "stopped":
            return
        if isinstance(
            failure.error, Interrupted
        ):  # simultaneous interruptions are one log record with their count
            _log.warning(
                "agent %s: a message ended without an answer, since an urgent one or interrupt() stopped its turn; "
                "attach session.on_exception to receive each failure",
                self.agent,
            )
            return
        _log.warning(
            "agent %s, session %s: message %s ended as %s failure: %s; attach session.on_exception to deal with it",
            self.agent,
            LogVariable(context.id),
            LogVariable(failure.message_id),
            failure.kind,
            LogVariable(self._error_text(failure.error)),
            exc_info=None if _is_of_provider(failure.error) else self._trace(failure.error),
        )

    def log_received_failure(self, context: SessionContext, failure: Failure) -> None:
        """Log a failure that a handler or caller has received. Call this method only if `debug` is True."""
        _log.warning(
            "agent %s, session %s: message %s ended as %s failure: %s",
            self.agent,
            LogVariable(context.id),
            LogVariable(failure.message_id),
            failure.kind,
            LogVariable(self._error_text(failure.error)),
            exc_info=self._trace(failure.error),
        )

    def warn_unanswered_stream(self, context: SessionContext, future: TurnFuture) -> None:
        """Log a warning if a stream that was read to its end gave no answer, and no handler receives its failure or approval."""
        failure = future.failure
        if failure is not None:
            if failure.kind not in ("stopped", "interrupted") and not context.handlers.any_of("exception"):
                _log.warning(
                    "agent %s, session %s: a stream ended as %s failure: %s; it is the stream's last delivery: raise the "
                    "error of each Failure, or attach session.on_exception",
                    self.agent,
                    LogVariable(context.id),
                    failure.kind,
                    LogVariable(self._error_text(failure.error)),
                    exc_info=None if _is_of_provider(failure.error) else self._trace(failure.error),
                )
        elif (error := future.suspended) is not None and not context.handlers.any_of("approval"):
            _log.warning(
                "agent %s: a stream ended without an answer, since a call of tool %s waits for an approval: decide with "
                "agent.answer(approval, Approve()) inside of agent.follow(session), which reads on, or with agent.resume()",
                self.agent,
                ", ".join(error.tools),
            )

    def warn_unhandled_approval(self, turn: Turn, approval: Approval) -> None:
        """Log a warning if no handler of the session or its parent sessions receives an approval request, and no caller does."""
        context = turn.session
        if self.shows_approvals() or any(not each.waits_for_approvals for each in turn.listeners):
            return
        above: SessionContext | None = context
        while above is not None:
            if above.handlers.any_of("approval"):
                return
            above = above.parent
        _log.warning(
            "agent %s: a call of tool %s waits for an approval, and no handler received the request: attach session.on_approval and decide with "
            "session.answer(approval, Approve()) or Reject(); agent.approvals() lists all that wait",
            self.agent,
            approval.tool_name,
        )

    # --- tools ---------------------------------------------------------------------------

    def log_tool_error(self, context: SessionContext, call: ToolCall, error: Exception) -> None:
        """Log the error of a tool with its traceback. A `ToolError` is a text for the model, and is logged only if `debug` is True."""
        is_mistake = _is_mistake(error)
        if not (is_mistake or self.debug):
            return
        _log.warning(
            "agent %s, session %s: tool %s failed; the model reads the error: %s",
            self.agent,
            LogVariable(context.id),
            call.name,
            LogVariable(self._error_text(error)),
            exc_info=None if isinstance(error, InvalidToolResult) else self._trace(error),
        )

    def log_unusable_result(self, context: SessionContext, call: ToolCall, error: InvalidToolResult) -> None:
        """Log that a tool result cannot be serialized to JSON. The call succeeded, and the model receives `str(value)`."""
        _log.warning(
            "agent %s, session %s: tool %s returned a value that is not JSON, so the model reads str() of it: %s",
            self.agent,
            LogVariable(context.id),
            call.name,
            LogVariable(self._error_text(error)),
        )

    # --- words ---------------------------------------------------------------------------

    def _error_text(self, error: BaseException) -> str:
        if self.is_redacted:
            error = _user_exception(error)
            return f"{type(error).__name__} at {source_location(error)}"
        words = error_text(error)
        named = words if words.startswith(type(error).__name__) else f"{type(error).__name__}: {words}"
        advice = advice_for(error)
        return f"{named} ({advice})" if advice else named

    def _trace(self, error: BaseException) -> _Traced | None:
        """Return the error with its traceback from the first frame of other code on; None if all frames are in actgent."""
        error = _user_exception(error)
        trace = None if self.is_redacted else error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            trace = trace.tb_next
        return None if trace is None else (type(error), error, trace)


def _user_exception(error: BaseException) -> BaseException:
    """Return the exception of the user's code that `error` wraps; `error` if it wraps none."""
    is_wrapper = isinstance(error, UserCodeExit) or (isinstance(error, ModelError) and error.client_error)
    return error.__cause__ if is_wrapper and error.__cause__ is not None else error


def _is_of_provider(error: BaseException) -> bool:
    """Return True if a model provider caused an error and no user code raised it, so that its traceback is useless."""
    return isinstance(error, ModelError) and not error.client_error


def _is_mistake(error: Exception) -> bool:
    """Return True if a tool error shows a defect of the program or its configuration, and is not a text for the model."""
    if isinstance(error, ToolError):
        return isinstance(error, InvalidToolResult)
    is_ours = type(error).__module__.partition(".")[0] == "actgent"
    return not is_ours or isinstance(error, (UserCodeExit, ModelError, ConfigurationError, UsageError))
