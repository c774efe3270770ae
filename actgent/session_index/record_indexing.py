"""Conversion of journal records to the texts and statistics that a session index stores."""

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from actgent.journal.record_feed_readers import WrittenBatch
from actgent.journal.record_types import (
    NOT_KEPT,
    REFUSED,
    AgentMessageRecord,
    CallFinishedRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    Record,
)
from actgent.journal.session_list_queries import State
from actgent.journal.session_tags_and_metadata import NO_ANNOTATIONS, SessionAnnotations
from actgent.messages import Message, ToolResult

from .search_and_trend_queries import BUCKET_RATIO

MAX_TEXT_CHARS = 100_000
"""Length to which an indexed text is cut, in characters."""
DAY_SECONDS = 86_400
NOT_ERRORS = (REFUSED, NOT_KEPT, "interrupted", "stopped", "moved")
"""Failure kinds of messages that were rejected or stopped on purpose."""
_SHORTEST_SECONDS = 0.001
FIGURES = (
    "turns",
    "errors",
    "model_calls",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "cost",
    "tool_calls",
    "tool_failures",
)
"""Names of the statistics that are summed."""
SumKey = tuple[int, str, str, str]
"""Key of a statistics sum: day since 1970, agent, owner and model."""


@attrs.frozen(kw_only=True)
class SessionFacts:
    """Metadata of a session that the index stores."""

    agent: str
    session_id: str
    owner: str
    """Name of the owner of the root session of the session's tree."""
    created_at: float
    """Creation time: Unix time in seconds. It distinguishes a session from an erased one with the same id."""
    updated_at: float
    """Unix time in seconds at which the session's last records were written."""
    state: State
    annotations: SessionAnnotations = NO_ANNOTATIONS
    """Tags and metadata of the session."""


@attrs.frozen
class IndexedText:
    """The text of a message that is added to the index."""

    at: float
    record: int
    """Number of the journal record that has the message."""
    message_id: str
    role: str
    text: str


@attrs.define
class IndexProgress:
    """Number of a session's indexed records, and the data from them that later records need."""

    records: int = 0
    """Number of records of the session that have been indexed."""
    turn: str = ""
    """Id of the message of the running turn; empty if no turn runs."""
    begun_at: float = 0.0
    """Unix time in seconds at which the running turn began; 0 if unknown."""
    model: str = ""
    """Name of the model that gave the latest answer; empty before the first answer."""
    calls: list[str] = attrs.field(factory=list)
    """Ids of the counted tool calls of the running turn. A result may be in two records, and is counted once."""
    figures: dict[str, float] = attrs.field(factory=dict)
    """Totals of the session so far: those named in `FIGURES`, and `seconds`, the duration of all turns."""


@attrs.define
class Tally:
    """Texts and statistics sums from the next records of one session, to be added to the index."""

    facts: SessionFacts
    progress: IndexProgress
    texts: list[IndexedText] = attrs.field(factory=list)
    sums: dict[SumKey, Counter[str]] = attrs.field(factory=dict)
    durations: Counter[tuple[SumKey, int]] = attrs.field(factory=Counter)
    """Number of turns by key (day, agent, owner and model) and bucket of the duration."""
    _number: int = 0
    """Number of the record that is being added."""

    def add(self, batches: Iterable[WrittenBatch]) -> None:
        """Add the next batches of the session. Their first record follows the records in the index."""
        for batch in batches:
            at = batch.at or self.facts.updated_at
            for number, record in enumerate(batch.records, batch.first):
                self._number = number
                self._add(record, at)
            self.progress.records = batch.last

    def _add(self, record: Record, at: float) -> None:
        match record:
            case MessageAcceptedRecord():
                self._add_text(record.message, "user", at)
            case MessageAppendedRecord():
                if not record.joins:
                    self.progress.turn, self.progress.begun_at = record.message_id, record.at or at
                    self.progress.calls = []
            case AgentMessageRecord():
                self._add_answer(record, at)
            case CallFinishedRecord():
                self._add_result(record.result, at)
            case MessageEndRecord():
                self._add_end(record, at)

    def _add_text(self, message: Message, role: str, at: float) -> None:
        if text := indexable_text(message.text):
            self.texts.append(IndexedText(at, self._number, message.id, role, text))

    def _add_answer(self, record: AgentMessageRecord, at: float) -> None:
        message, usage = record.message, record.usage
        if message.sender.kind == "assistant":
            self._add_text(message, "assistant", at)
        if record.stop:
            self.progress.model = record.model
            self._count(
                at,
                model_calls=1,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cached_tokens=usage.cached_tokens,
                cost=usage.cost or 0.0,
            )
        for result in message.tool_results:
            self._add_result(result, at)

    def _add_result(self, result: ToolResult, at: float) -> None:
        if result.call_id not in self.progress.calls:
            self.progress.calls.append(result.call_id)
            has_failed = result.status in ("error", "outcome_unknown")
            self._count(at, tool_calls=1, tool_failures=int(has_failed))

    def _add_end(self, end: MessageEndRecord, at: float) -> None:
        progress = self.progress
        is_error = end.failed is not None and end.failed not in NOT_ERRORS
        if end.message_id == progress.turn:  # other messages joined this turn, or never had a turn
            key = self._count(at, turns=1, errors=int(is_error))
            if progress.begun_at:
                seconds = max(0.0, at - progress.begun_at)
                self.durations[key, bucket_of(seconds)] += 1
                progress.figures["seconds"] = progress.figures.get("seconds", 0.0) + seconds
            progress.turn, progress.begun_at, progress.calls = "", 0.0, []
        elif is_error:
            self._count(at, errors=1)

    def _count(self, at: float, **figures: float) -> SumKey:
        key = (int(at // DAY_SECONDS), self.facts.agent, self.facts.owner, self.progress.model)
        sums, whole = self.sums.setdefault(key, Counter()), self.progress.figures
        for name, value in figures.items():
            if value:
                sums[name] += value  # type: ignore[assignment] # dollars are floats
                whole[name] = whole.get(name, 0) + value
        return key


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket to which a duration belongs. Each bucket is 10 % wider than the one before."""
    return math.ceil(math.log(max(seconds, _SHORTEST_SECONDS)) / math.log(BUCKET_RATIO))


def seconds_of(bucket: int) -> float:
    """Return the middle of the duration bucket with this number, in seconds."""
    return float(BUCKET_RATIO ** (bucket - 0.5))


def indexable_text(text: str) -> str:
    """Return the text to index: the string values of an answer in JSON, or the text itself."""
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        with contextlib.suppress(ValueError, RecursionError):  # not JSON
            text = "\n".join(_strings_in(json.loads(text)))
    return text[:MAX_TEXT_CHARS].encode("utf-8", "replace").decode().replace("\0", " ")


def _strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings_in(each)
