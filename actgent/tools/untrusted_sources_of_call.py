"""Untrusted sources of the running tool call, of the request of a client, and of text that a function of the program reads."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import attrs

from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.untrusted_text_delimiters import join_origins


@attrs.define(eq=False, repr=False)
class CallSources(FieldRepr):
    """Untrusted sources of the text that one running tool call has received."""

    owner: object
    """Session whose turn runs the call; None for a call without a session."""
    argument_sources: str
    """Untrusted sources of the arguments. Messages that the call sends carry these sources."""
    answer_sources: str = ""
    """Untrusted sources of the answers of other sessions that the call has read."""
    outer: "CallSources | None" = None
    """Sources of the call that made this nested call; None for calls of the model."""
    has_stored: bool = False
    """True if the call has changed the session state. Prompts and other tools may then show untrusted text from the state."""

    def add(self, sources: str) -> None:
        """Add the untrusted sources of an answer that the call has read. The result of the call gets these sources, too."""
        self.answer_sources = join_origins(self.answer_sources, sources)

    def is_inside(self, call: "CallSources | None") -> bool:
        """Return True if this call is `call`, or was made by `call` directly or through other calls."""
        return self is call or (self.outer is not None and self.outer.is_inside(call))

    def note_stored(self, keys: Iterable[str]) -> None:
        """Record that this call and its outer calls have changed the state, if a changed key is visible to models.

        Keys that begin with `_` are hidden from models.
        """
        if not all(key.startswith("_") for key in keys):
            self.has_stored = True
            if self.outer is not None:
                self.outer.note_stored(keys)


sources_of_request: ContextVar[str] = ContextVar("sources_of_request", default="")
"""Untrusted sources that the client of an HTTP request named; empty for other work."""
running_call: ContextVar[CallSources | None] = ContextVar("running_call", default=None)
"""Untrusted sources of the call that the current task runs; None if its session collects them."""
text_sources: ContextVar["_TextSources | None"] = ContextVar("text_sources", default=None)
"""Sources of the text that the current block of `reading_text_of` reads; None outside of such blocks."""


@attrs.define(eq=False, repr=False)
class _TextSources(FieldRepr):
    """Untrusted sources of the text that a block reads."""

    sources: str
    is_over: bool = False
    """True after the end of the block. Tasks that were started inside the block may still see its context variables."""


@contextmanager
def reading_text_of(sources: str) -> Iterator[None]:
    """During the block, add untrusted sources to all messages that are sent, because the block has read text of these sources."""
    block = _TextSources(join_origins(sources_of_text(), sources))
    token = text_sources.set(block)
    try:
        yield
    finally:
        block.is_over = True
        text_sources.reset(token)


def sources_of_text() -> str:
    """Return the untrusted sources of the text that the current block of `reading_text_of` has read; empty outside of a block."""
    block = text_sources.get()
    return "" if block is None or block.is_over else block.sources


def sources_outside_of_turns() -> str:
    """Return the untrusted sources of a task outside of turns: those of its client, and of text that it has read."""
    given = sources_of_request.get()
    return given if text_sources.get() is None else join_origins(given, sources_of_text())
