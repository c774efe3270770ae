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
    own_sources: str = ""
    """Untrusted sources of all other text that the call has read, after its end. Tasks that it started may still send messages."""
    outer: "CallSources | None" = None
    """Sources of the call that made this nested call; None for calls of the model."""
    has_stored: bool = False
    """True if the call has changed the session state. Prompts and other tools may then show untrusted text from the state."""

    @property
    def sources(self) -> str:
        """Untrusted sources of all text that the call has read. During the call, text that the call itself reads is missing."""
        return join_origins(self.argument_sources, join_origins(self.answer_sources, self.own_sources))

    def add(self, sources: str) -> None:
        """Record the untrusted sources of an answer that the tool call has read. The result of the call also gets them."""
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
sources_of_text: ContextVar[str] = ContextVar("sources_of_text", default="")
"""Untrusted sources of the text that blocks of `reading_text_of` read. Tasks that are started inside a block keep them."""


@contextmanager
def reading_text_of(sources: str) -> Iterator[None]:
    """Context manager: label the messages that its block sends with `sources`, because the block has read their text."""
    token = sources_of_text.set(join_origins(sources_of_text.get(), sources))
    try:
        yield
    finally:
        sources_of_text.reset(token)


def sources_outside_of_turns() -> str:
    """Return the untrusted sources of a task outside of turns: those of its client, and of text that it has read."""
    return join_origins(sources_of_request.get(), sources_of_text.get())
