"""`verbose=`: prints the steps of an agent's sessions as lines of text while they happen."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import attrs

from actgent.agents.session import Session
from actgent.errors import ConfigurationError, ParseError
from actgent.errors.text_escaping import shown
from actgent.messages import Failure, Message
from actgent.state.session_state import State
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.strict_json import loads
from actgent.support.user_code_calls import explained_text

Write = Callable[[str], object]
"""Function that takes one line."""
MAX_VALUE_CHARS = 300
"""Maximum characters of a value in a line."""


class TextFile(Protocol):
    """Interface of a file that is open for writing text, such as `sys.stderr`."""

    def write(self, text: str, /) -> object:
        """Write a text to the file."""
        ...


Verbose = bool | Write | TextFile
"""Values of `verbose=`: True writes to standard error, False writes nothing; a function or a file receives the lines."""


def writer_of(verbose: object) -> Write | None:
    """Return the function that receives the output lines for the argument `verbose=`; None if `verbose` is False.

    Raises:
        ConfigurationError: The value is neither True nor False, a function or a file.
    """
    if verbose is True:
        return to_stderr
    if verbose is False or verbose is None:
        return None
    write = getattr(verbose, "write", None)
    if callable(write) and not isinstance(verbose, type):
        return lambda line: write(f"{line}\n")
    if callable(verbose) and not isinstance(verbose, type):
        return verbose
    raise ConfigurationError(
        f"verbose= must be True, False, a file open for text, or a function that takes a line, not {verbose!r:.200}"
    )


def to_stderr(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{line}\n")


class Narrated(Protocol):
    """Interface of an agent whose steps a narration writes."""

    def on_session(self, fn: Any, /) -> Any: ...
    def on_message(self, fn: Any, /) -> Any: ...


@attrs.define(repr=False)
class Narration(FieldRepr):
    """Writes a line for each message, decision, tool call, result, state change and failure of an agent."""

    write: Write
    """Function that receives each line."""
    _started_at: float = attrs.field(factory=time.monotonic)
    """Time at which the narration was created, in seconds of the monotonic clock. Lines show the seconds since then."""
    _changes: dict[str, list[str]] = attrs.field(factory=dict)
    """Lines of state changes that are not written yet, by session id. They follow the line of the message that caused them."""
    _last: str = ""
    """Id of the session of the last line; empty before the first line."""

    def attach(self, agent: Narrated) -> None:
        """Start to write lines for all sessions of an agent."""
        agent.on_session(self._watch)
        agent.on_message(self._print_message)

    def _watch(self, session: Session[Any]) -> None:
        known: dict[str, Any] = {}
        changes = self._changes.setdefault(session.id, [])

        def changed(state: State) -> None:
            for key in state:
                if not key.startswith("_") and (key not in known or known[key] != state[key]):
                    known[key] = state[key]
                    changes.append(f"  state: {key} = {value_line(known[key])}")
            changes.extend(self.state_lines(session, state))

        session.state.subscribe(changed)
        session.on_exception(lambda failure: self._print_failure(failure, session.id))

    def state_lines(self, session: Session[Any], state: State) -> Iterable[str]:
        """Return additional lines to print after a change of the session's state; the base class returns none."""
        return ()

    def _print_message(self, message: Message) -> None:
        match message.sender.kind:
            case "assistant":
                for line in self.lines_of(message):
                    self._line(message.session_id, line)
                self._flush(message.session_id)
            case "tool":
                for result in message.tool_results:
                    text = f"failed: {result.error}" if result.error is not None else result.content
                    self._line(message.session_id, f"  {result.tool_name}: {shown(text, MAX_VALUE_CHARS)}")
            case kind:
                self._flush(message.session_id)
                self._line(
                    message.session_id, f"{self.name_of(kind)}: {shown(message.text, MAX_VALUE_CHARS)}"
                )

    def _print_failure(self, failure: Failure, session_id: str) -> None:
        self._flush(session_id)
        words = explained_text(failure.error) or type(failure.error).__name__
        self._line(session_id, f"failed ({failure.kind}): {shown(words, MAX_VALUE_CHARS)}")

    def name_of(self, kind: str) -> str:
        """Return the name that output lines show for senders of this kind. The base class returns the kind itself.

        It is not called for models and tools, whose lines have fixed labels.
        """
        return kind

    def lines_of(self, message: Message) -> Iterator[str]:
        """Yield the output lines of a model answer: first its native tool calls, then its text or the fields of its JSON decision."""
        for call in message.tool_calls:
            yield f"calls {call.name} {value_line(call.arguments)}"
        if not message.text.strip():
            return
        try:
            decision = loads(message.text)
        except ParseError:
            decision = None
        lines = list(self.decision_lines(decision)) if isinstance(decision, dict) else []
        yield from lines or [f"says: {shown(message.text, MAX_VALUE_CHARS)}"]

    def decision_lines(self, decision: Mapping[str, Any]) -> Iterator[str]:
        """Yield the lines of an answer in the JSON form of a protocol; none if the form is unknown."""
        for key, word in _WORDS.items():
            if decision.get(key):
                yield f"{word}: {_value_text(decision[key])}"
        calls = decision.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                yield f"calls {shown(call.get('tool_name', ''))} {value_line(call.get('parameters', {}))}"
        for key, word in _ANSWERS.items():
            if decision.get(key) is not None:
                yield f"{word}: {_value_text(decision[key])}"

    def _flush(self, session_id: str) -> None:
        changes = self._changes.get(session_id, [])
        for text in changes:
            self._line(session_id, text)
        changes.clear()

    def _line(self, session_id: str, text: str) -> None:
        if self._last and self._last != session_id:
            self.line(f"session {session_id}")
        self._last = session_id
        self.line(text)

    def line(self, text: str) -> None:
        """Write a line of text after the seconds since the narration started."""
        self.write(f"[{time.monotonic() - self._started_at:7.2f} s] {text}")


_WORDS = {"thought": "thinks", "tool_thought": "thinks", "plan": "plans"}
_ANSWERS = {"final_answer": "answers", "content": "answers", "primary_action": "decides"}
"""Labels of JSON answers by the field that they contain."""


def _value_text(value: Any) -> str:
    return shown(value, MAX_VALUE_CHARS) if isinstance(value, str) else value_line(value)


def value_line(value: Any) -> str:
    """Return a value as one shortened line of JSON, or of Python's `repr` if it is not JSON data."""
    try:
        return shown(json.dumps(value, ensure_ascii=False), MAX_VALUE_CHARS)
    except (TypeError, ValueError):
        return shown(repr(value), MAX_VALUE_CHARS)
