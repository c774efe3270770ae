"""Search and statistics queries of a session index, and their results."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import attrs

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import quoted
from actgent.journal.session_list_queries import State, is_storable
from actgent.journal.session_tags_and_metadata import NO_SESSION_METADATA, check_session_metadata, check_tags
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.unknown_name_hints import lists_arguments
from actgent.support.word_normalization import separate_words

MAX_QUERY_CHARS = 500
"""Maximum length of a query, in characters."""
MAX_TERMS = 32
"""Maximum number of terms of a query."""
MIN_PREFIX_CHARS = 2
"""Minimum length of a prefix, in characters."""
SNIPPET_CHARS = 160
"""Length of a snippet, in characters."""
_TERM = re.compile(r'(-?)(?:"([^"]*)"?|(\S+))')
_WORD = re.compile(r"[^\W_]+")
Group = Literal["day", "agent", "model", "owner"]
"""Dimension by which statistics are grouped."""


@attrs.frozen(repr=False)
class Term(FieldRepr):
    """A word or phrase of a query."""

    words: Sequence[str]
    """Consecutive words of the phrase, in the form that the index stores."""
    is_prefix: bool = False
    """True if the last word matches all words that begin with it."""
    is_excluded: bool = False
    """True if messages that contain the term must not match."""


def parse_query(text: str, tokenize: Callable[[str], Sequence[str]]) -> tuple[Term, ...]:
    """Parse the text of a query to its terms.

    Syntax: `word`, `"a phrase"`, `begin*` and `-excluded`. A message matches if it has all terms that are not excluded. An
    empty text has no terms, so that all messages match.

    Raises:
        ConfigurationError: The query is too long, has text but no word, or a prefix is too short.
    """
    if len(text) > MAX_QUERY_CHARS:
        raise ConfigurationError(f"a search query must be a string of at most {MAX_QUERY_CHARS} characters")
    found: list[Term] = []
    for sign, phrase, word in _TERM.findall(text):
        given = phrase or word
        if words := tokenize(separate_words(given)):
            is_prefix = word.endswith("*")
            if is_prefix and len(words[-1]) < MIN_PREFIX_CHARS:
                raise ConfigurationError(
                    f"the prefix {quoted(word, 60)} is too short: write at least {MIN_PREFIX_CHARS} characters before the *"
                )
            found.append(Term(words, is_prefix=is_prefix, is_excluded=bool(sign)))
    if text.strip() and not found:
        raise ConfigurationError(
            f"the search query {quoted(text, 60)} has no word: write at least one word, or leave the query empty"
        )
    if len(found) > MAX_TERMS:
        raise ConfigurationError(
            f"a search query may have at most {MAX_TERMS} words and phrases, not {len(found)}"
        )
    return tuple(found)


def _check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    return check_tags("tags", tags)


@lists_arguments
@attrs.frozen(kw_only=True, repr=False)
class SearchFilter(FieldRepr):
    """Filter of a search. A message must match all fields that are set; None in a field matches all messages."""

    agent: str | None = None
    """Name of the agent of the message's session."""
    owner: str | None = None
    """Name of the owner of the root session of the session's tree."""
    role: Literal["user", "assistant"] | None = None
    """Sender of the message: `assistant` for answers, `user` for all other messages."""
    state: State | None = None
    """Current state of the session."""
    since: float | None = None
    """Unix time in seconds: only messages written at or after this time match."""
    until: float | None = None
    """Unix time in seconds: only messages written before this time match."""
    min_cost: float | None = None
    """Minimum cost of the session in US dollars."""
    max_cost: float | None = None
    """Maximum cost of the session in US dollars."""
    min_seconds: float | None = None
    """Minimum duration of all turns of the session together, in seconds."""
    max_seconds: float | None = None
    """Maximum duration of all turns of the session together, in seconds."""
    has_errors: bool | None = None
    """True if only sessions with a failed turn match, False if only sessions without one."""
    tags: tuple[str, ...] = attrs.field(default=(), converter=_check_tags)
    """Only messages of sessions with all these tags match."""
    metadata: Mapping[str, str] = attrs.field(default=NO_SESSION_METADATA, converter=check_session_metadata)
    """Only messages of sessions with all these metadata values match."""

    @property
    def has_session_conditions(self) -> bool:
        """True if the filter has conditions that the word index cannot check."""
        given = (
            self.state,
            self.min_cost,
            self.max_cost,
            self.min_seconds,
            self.max_seconds,
            self.has_errors,
        )
        return any(value is not None for value in given) or bool(self.tags or self.metadata)

    @property
    def is_satisfiable(self) -> bool:
        """True if a database can store the agent and owner names of the filter; otherwise no session matches."""
        return all(name is None or is_storable(name) for name in (self.agent, self.owner))


@attrs.frozen(kw_only=True, repr=False)
class SearchHit(FieldRepr):
    """A message that matches a search, with cost, duration and turns of its session."""

    agent: str
    """Name of the session's agent."""
    session_id: str
    """Id of the session that has the message."""
    owner: str
    """Name of the owner of the root session of the session's tree."""
    message_id: str
    """Id of the found message."""
    record: int
    """Number of the journal record that has the message."""
    role: str
    """`assistant` for an answer, `user` for all other messages."""
    at: float
    """Unix time in seconds at which the message was written."""
    snippet: str
    """Part of the message's text with the first match."""
    marks: tuple[tuple[int, int], ...]
    """Start and end index of each match in `snippet`, in characters."""
    cost: float
    """Total cost of the session in US dollars."""
    seconds: float
    """Duration of all turns of the session together, in seconds."""
    turns: int
    """Number of turns of the session."""
    errors: int
    """Number of failed turns of the session."""


@attrs.frozen(kw_only=True, repr=False)
class SearchPage(FieldRepr):
    """A page of messages that a search found, the newest message first."""

    hits: tuple[SearchHit, ...]
    """The found messages. More pages may follow a page with few or no messages; see `following`."""
    following: str | None = None
    """Cursor of the next page; None on the last page."""
    is_complete: bool = True
    """False while the index is being built, so that older messages may be missing."""


@attrs.frozen(kw_only=True, repr=False)
class Trend(FieldRepr):
    """Statistics of one group: one day, agent, model or owner."""

    name: str
    """Day (`2026-11-27`, UTC), or name of the agent, model or owner; empty for turns without a model call."""
    turns: int = 0
    """Number of ended turns of the group."""
    errors: int = 0
    """Number of failed turns, without those that were stopped or rejected."""
    model_calls: int = 0
    """Number of model calls that were answered."""
    input_tokens: int = 0
    """Number of prompt tokens of the model calls."""
    output_tokens: int = 0
    """Number of answer tokens of the model calls."""
    cached_tokens: int = 0
    """Number of prompt tokens that were read from the provider's cache."""
    cost: float = 0.0
    """Cost of the model calls in US dollars."""
    tool_calls: int = 0
    """Number of tool calls in the turns of the group."""
    tool_failures: int = 0
    """Number of failed tool calls in the turns of the group."""
    p50: float | None = None
    """Median duration of a turn in seconds, within 5 %; None without turns."""
    p95: float | None = None
    """Duration in seconds that 95 % of the turns do not exceed, within 5 %; None without turns."""
    p99: float | None = None
    """Duration in seconds that 99 % of the turns do not exceed, within 5 %; None without turns."""


@attrs.frozen(kw_only=True, repr=False)
class Trends(FieldRepr):
    """Statistics by group, and of all groups together."""

    items: tuple[Trend, ...]
    """One item per group: days in order, other groups by cost and turns, highest first."""
    total: Trend
    """Statistics of all groups, also of those that `items` omits."""
    is_complete: bool = True
    """False while the index is being built, so that sessions may be missing."""


# --- snippets ----------------------------------------------------------------------------


def cut_snippet(
    text: str, terms: Sequence[Term], tokenize: Callable[[str], Sequence[str]]
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the part of a text around the first match of the terms, and the start and end indexes of all matches in it."""
    wanted = {word for term in terms if not term.is_excluded for word in term.words}
    begins = tuple(term.words[-1] for term in terms if term.is_prefix and not term.is_excluded)
    places = _match_ranges(text, wanted, begins, tokenize)
    first = places[0][0] if places else 0
    begin = max(0, first - SNIPPET_CHARS // 4)
    if begin and (space := text.find(" ", begin, first)) != -1:
        begin = space + 1
    end = begin + SNIPPET_CHARS
    marks = tuple((start - begin, stop - begin) for start, stop in places if begin <= start and stop <= end)
    return text[begin:end], marks


def _match_ranges(
    text: str, wanted: set[str], begins: tuple[str, ...], tokenize: Callable[[str], Sequence[str]]
) -> list[tuple[int, int]]:
    """Return the start and end indexes of matching words, up to the end of the snippet around the first match.

    A word matches if it is in `wanted`, or begins with one of `begins`.
    """
    found: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        if found and match.start() > found[0][0] + SNIPPET_CHARS:
            break
        words = tokenize(separate_words(match[0]))
        if any(word in wanted or (begins and word.startswith(begins)) for word in words):
            found.append(match.span())
    return found


# --- percentiles -------------------------------------------------------------------------

BUCKET_RATIO = 1.1
"""Ratio of two consecutive bucket limits of durations."""


def duration_percentile(
    counts: Mapping[int, int], share: float, to_seconds: Callable[[int], float]
) -> float | None:
    """Return the duration in seconds that the fraction `share` of the turns does not exceed; None without turns.

    `counts` has the number of turns by duration bucket. `to_seconds` converts a bucket number to seconds.
    """
    total = sum(counts.values())
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= share * total:
            return round(to_seconds(bucket), 3)
    return None


class IndexQueries(Protocol):
    """The queries of an open index. `SessionIndex` implements them; only runtimes with an index import it."""

    async def search(
        self, query: str, filters: SearchFilter, *, after: str | None = None, limit: int = 20
    ) -> SearchPage:
        """Return the newest messages that match a query and a filter; see `SessionIndex.search`."""

    async def trends(
        self,
        by: Group,
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        owner: str | None = None,
        model: str | None = None,
    ) -> Trends:
        """Return statistics by day, agent, model or owner; see `SessionIndex.trends`."""

    async def run(self) -> None:
        """Fill the index until cancelled."""
