"""`verbose=`: the steps of an agent's sessions as lines of plain words, while they happen."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import attrs

from actgent.agents.session import Session
from actgent.errors import ConfigurationError, ParseError
from actgent.errors.printable import shown
from actgent.messages import Failure, Message
from actgent.state.store import State
from actgent.support.foreign import telling_text
from actgent.support.strict_json import loads

Write = Callable[[str], object]
"""Takes one line."""
LINE = 300
"""Characters of a value in a line."""


class TextFile(Protocol):
    """A file open for text."""

    def write(self, text: str, /) -> object:
        """Write a text."""
        ...


Verbose = bool | Write | TextFile
"""The values of `verbose=`: True writes to standard error; otherwise a function that takes a line, or a file."""


def writer_of(verbose: object) -> Write | None:
    """Return the function that takes the lines; None if there are to be none.

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
        f"verbose= is True, a file open for text, or a function that takes a line, not {verbose!r:.200}"
    )


def to_stderr(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{line}\n")


class Narrated(Protocol):
    """An agent, as far as a narration uses it."""

    def on_session(self, fn: Any, /) -> Any: ...
    def on_message(self, fn: Any, /) -> Any: ...


@attrs.define
class Narration:
    """Writes a line for each message, decision, tool call, result, state change and failure of an agent."""

    write: Write
    """Gets each line."""
    _begun: float = attrs.field(factory=time.monotonic)
    _changes: dict[str, list[str]] = attrs.field(factory=dict)
    """By session, the lines of changes that are not written yet: a message is seen after the changes that it leads to."""
    _last: str = ""
    """The session of the line before."""

    def attach(self, agent: Narrated) -> None:
        """Write about all sessions of an agent from now on."""
        agent.on_session(self._watch)
        agent.on_message(self._tell)

    def _watch(self, session: Session[Any]) -> None:
        known: dict[str, Any] = {}
        changes = self._changes.setdefault(session.id, [])

        def changed(state: State) -> None:
            for key in state:
                if not key.startswith("_") and (key not in known or known[key] != state[key]):
                    known[key] = state[key]
                    changes.append(f"  state: {key} = {value_shown(known[key])}")
            changes.extend(self.ends_of(session, state))

        session.state.subscribe(changed)
        session.on_exception(lambda failure: self._tell_failure(failure, session.id))

    def ends_of(self, session: Session[Any], state: State) -> Iterable[str]:
        """Return further lines about a state; none in general."""
        return ()

    def _tell(self, message: Message) -> None:
        match message.sender.kind:
            case "assistant":
                for line in self.lines_of(message):
                    self._line(message.session_id, line)
                self._flush(message.session_id)
            case "tool":
                for result in message.tool_results:
                    said = f"failed: {result.error}" if result.error is not None else result.content
                    self._line(message.session_id, f"  {result.tool_name}: {shown(said, LINE)}")
            case kind:
                self._flush(message.session_id)
                self._line(message.session_id, f"{self.name_of(kind)}: {shown(message.text, LINE)}")

    def _tell_failure(self, failure: Failure, session_id: str) -> None:
        self._flush(session_id)
        words = telling_text(failure.error) or type(failure.error).__name__
        self._line(session_id, f"failed ({failure.kind}): {shown(words, LINE)}")

    def name_of(self, kind: str) -> str:
        """Return the word for the sender of a message that no model wrote."""
        return kind

    def lines_of(self, message: Message) -> Iterator[str]:
        """The lines of a model's answer: its native calls, then its text, or the parts of a text that is a decision in JSON."""
        for call in message.tool_calls:
            yield f"calls {call.name} {value_shown(call.arguments)}"
        if not message.text.strip():
            return
        try:
            decision = loads(message.text)
        except ParseError:
            decision = None
        lines = list(self.decided(decision)) if isinstance(decision, dict) else []
        yield from lines or [f"says: {shown(message.text, LINE)}"]

    def decided(self, decision: Mapping[str, Any]) -> Iterator[str]:
        """The lines of an answer in a form of a protocol; none if the form is not known."""
        for key, word in _WORDS.items():
            if decision.get(key):
                yield f"{word}: {_words(decision[key])}"
        calls = decision.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                yield f"calls {shown(call.get('tool_name', ''))} {value_shown(call.get('parameters', {}))}"
        for key, word in _ANSWERS.items():
            if decision.get(key) is not None:
                yield f"{word}: {_words(decision[key])}"

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
        """Write a line, with the seconds since the beginning."""
        self.write(f"[{time.monotonic() - self._begun:7.2f} s] {text}")


_WORDS = {"thought": "thinks", "tool_thought": "thinks", "plan": "plans"}
_ANSWERS = {"final_answer": "answers", "content": "answers", "primary_action": "decides"}
"""The words for members of the forms of answers."""


def _words(value: Any) -> str:
    return shown(value, LINE) if isinstance(value, str) else value_shown(value)


def value_shown(value: Any) -> str:
    """Return a value as one line of JSON."""
    try:
        return shown(json.dumps(value, ensure_ascii=False), LINE)
    except (TypeError, ValueError):
        return shown(repr(value), LINE)
