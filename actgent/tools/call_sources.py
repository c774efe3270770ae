"""Untrusted sources of the running tool call, under a policy that isolates untrusted text."""

from contextvars import ContextVar

import attrs

from actgent.support.untrusted_text import join_origins


@attrs.define(eq=False)
class CallSources:
    """Untrusted sources of one running call."""

    owner: object
    """Session of the call."""
    given: str
    """Sources of the arguments; messages that the call sends carry them."""
    found: str = ""
    """Sources of the sessions whose answers the call has read."""

    def add(self, sources: str) -> None:
        """Note sources of an answer that the call has read."""
        self.found = join_origins(self.found, sources)


running_call: ContextVar[CallSources | None] = ContextVar("running_call", default=None)
"""Sources of the call that the current task runs; None without isolation."""
