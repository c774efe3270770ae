"""OpenTelemetry spans of memory operations in a turn."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from actgent.support import span_names as names
from actgent.support.tracing_interface import Attribute, TracedWork, active_trace, begin_operation

from .memory_records import MemoryRecord

PROVIDER = "actgent"
"""Value of `gen_ai.provider.name` of memory operations."""


def begin_memory_span(operation: str, query: str | None = None) -> AbstractContextManager[TracedWork | None]:
    """Return a block that records a memory operation as a span of the running turn.

    `query` is the text of a search, for telemetry with contents; None for other operations.
    """
    attributes: dict[str, Attribute] = {names.PROVIDER: PROVIDER}
    active = active_trace.get()
    if active is not None and query is not None:
        attributes |= active.tracing.content(names.MEMORY_QUERY, lambda: query)
    return begin_operation(operation, attributes=attributes, kind="client")


def note_records(span: TracedWork | None, memories: Sequence[MemoryRecord]) -> None:
    """Add the number of memories to the span of their operation. If there is one memory, also add its id."""
    if span is None:
        return
    span.facts[names.MEMORY_COUNT] = len(memories)
    if len(memories) == 1:
        span.facts[names.MEMORY_ID] = memories[0].id
