"""Data types of long-term memories, and the validation of their fields."""

import json
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import attrs

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import shown
from actgent.information_flow_labels import Label, label_of
from actgent.messages import Sender
from actgent.support.unknown_name_hints import lists_arguments
from actgent.support.untrusted_text_delimiters import READERS, join_origins, split_readers

MAX_TEXT_CHARACTERS = 8_000
"""Maximum length of a memory in characters. A memory is a fact or an episode, not a document."""
MAX_NAME_CHARS = 200
"""Maximum length of a kind or relation in characters."""
MAX_ID_BYTES = 1_600
"""Maximum size of an id or key. With an owner, an index row in PostgreSQL has at most 2,704 bytes."""
Source = Literal["words", "vectors", "session", "worth"]
"""Reason why a search found a memory: its words, its vector, a neighbour in its session, or its worth."""


@attrs.frozen
class Association:
    """A link between two memories, as seen from one of them."""

    id: str
    """Id of the memory at the other end of the link."""
    relation: str
    """Meaning of the link, such as `related_to`, `causes`, `part_of`, or any other word."""
    is_from_here: bool
    """True if the link leads from this memory to the other memory."""


@attrs.frozen(kw_only=True)
class MemoryRecord:
    """One long-term memory. It is immutable: an update creates a new memory, and the old one stays readable as history."""

    id: str
    """Id of the memory, unique in the store."""
    text: str
    """Text of the memory, which the model reads."""
    kind: str = "fact"
    """Kind of the memory: `fact`, `episode`, `procedure`, or any other word."""
    owner: Sender
    """Owner of the memory. Only the owner's sessions recall it, unless it is shared."""
    is_shared: bool = False
    """True if all owners can recall the memory. Only its owner can replace or forget it."""
    agent: str = ""
    """Name of the agent that stored the memory; empty if a program stored it."""
    session_id: str = ""
    """Id of the session that the memory comes from; empty if unknown."""
    message_id: str = ""
    """Id of the message that the memory comes from; empty if unknown."""
    importance: float = 0.5
    """Importance from 0 to 1, for ranking and eviction."""
    is_kept: bool = False
    """True if the memory is never evicted when the owner has reached the capacity."""
    created_at: float = 0.0
    """Unix time in seconds at which the memory was created."""
    last_used: float = 0.0
    """Unix time in seconds of the memory's last recall; of its creation if it was never recalled."""
    uses: int = 0
    """Number of times that the memory was recalled."""
    valid_from: float | None = None
    """Unix time in seconds from which the memory is valid; None has no start."""
    valid_until: float | None = None
    """Unix time in seconds from which the memory is no longer valid; None has no end."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    """Values for programs by name: texts, numbers, True, False and None."""
    replaces: str | None = None
    """Id of the memory that this one replaces; None if it is the first version."""
    replaced_by: str | None = None
    """Id of the memory that replaces this one; None if it is current."""


@attrs.frozen
class MemoryMatch:
    """A search result: a memory with its score."""

    memory: MemoryRecord
    """The memory that was found."""
    score: float
    """Score of the memory. Higher is better; scores of different searches are not comparable."""
    found_by: tuple[Source, ...]
    """Reasons why the memory was found. `words`: it shares words with the query.
    `vectors`: its vector was compared with the query. `session`: only memories next to it in the same session matched.
    `worth`: the query has no words, and the memory is one of the most important.
    """


@attrs.frozen(kw_only=True)
class MemoryPage:
    """One page of memories for a person who reviews them."""

    memories: tuple[MemoryRecord, ...]
    """Current memories on the page."""
    following: str | None
    """Value of `after` for the next page; None on the last page."""


@attrs.frozen(kw_only=True)
class MemoryOwnerPage:
    """One page of the owners that have current memories."""

    owners: tuple[tuple[Sender, int], ...]
    """Owners on the page, each with the number of its current memories."""
    following: str | None
    """Value of `after` for the next page; None on the last page."""


@lists_arguments
@attrs.frozen(kw_only=True)
class MemoryFilter:
    """Filter for memories. A memory must fulfil all conditions.

    Raises:
        ConfigurationError: A list is a text, or a value of `metadata` is not a text, number, boolean or None.
    """

    kinds: Sequence[str] = ()
    """Allowed kinds of memories; empty allows all."""
    agents: Sequence[str] = ()
    """Allowed names of agents that stored the memory; empty allows all."""
    sessions: Sequence[str] = ()
    """Allowed ids of the sessions that memories come from; empty allows all."""
    since: float | None = None
    """Earliest creation as Unix time in seconds; None has no limit."""
    until: float | None = None
    """Unix time in seconds before which the memory was created; None has no limit."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    """Metadata values that a memory must have, by name."""
    is_kept: bool | None = None
    """Required value of `MemoryRecord.is_kept`; None allows both."""

    def __attrs_post_init__(self) -> None:
        for name in ("kinds", "agents", "sessions"):
            if isinstance(getattr(self, name), str):
                raise ConfigurationError(
                    f"{name}= must be a list of strings, not {getattr(self, name)!r}: write [{getattr(self, name)!r}]"
                )
        check_metadata(self.metadata)

    @property
    def is_empty(self) -> bool:
        """True if the filter has no condition."""
        return self == EVERYTHING


# --- validation -------------------------------------------------------------------------


def validate_text(text: object) -> str:
    """Validate the text of a memory, and return it without characters that databases reject.

    Raises:
        ConfigurationError: The text is not a string, is blank, or is too long.
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError(f"a memory must be a string that is not blank, not {text!r:.80}")
    if len(text) > MAX_TEXT_CHARACTERS:
        raise ConfigurationError(
            f"the text of the memory has {len(text):,} characters, and at most {MAX_TEXT_CHARACTERS:,} are allowed: store a summary"
        )
    return sanitize_text(text).strip()


def sanitize_text(text: str) -> str:
    """Replace NUL characters and lone surrogates, which databases reject, and return the text."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def validate_id(label: str, text: str) -> str:
    """Replace the characters of an id or key that databases reject, and return it. `label` names the id in errors.

    Raises:
        ConfigurationError: The text is too long for an index of PostgreSQL.
    """
    cleaned = sanitize_text(text)
    if (size := len(cleaned.encode())) > MAX_ID_BYTES:
        raise ConfigurationError(
            f"{label} {cleaned[:20]!r}... has {size:,} bytes in UTF-8, and at most {MAX_ID_BYTES:,} are allowed: use a shorter one, such as a digest"
        )
    return cleaned


def validate_name(label: str, name: object) -> str:
    """Validate the name of a kind or relation, and return it. `label` is the argument's name in the error.

    Raises:
        ConfigurationError: The name is not a printable text on one line of at most 200 characters.
    """
    if not isinstance(name, str) or not 0 < len(name.strip()) <= MAX_NAME_CHARS or not name.isprintable():
        raise ConfigurationError(
            f"{label} must be a printable text of at most {MAX_NAME_CHARS} characters, not {name!r:.80}"
        )
    return name.strip()


def validate_importance(importance: object) -> float:
    """Validate an importance, and return it.

    Raises:
        ConfigurationError: The importance is not a number from 0 to 1.
    """
    is_number = isinstance(importance, int | float) and not isinstance(importance, bool)
    if not is_number or not 0 <= importance <= 1:  # type: ignore[operator]
        raise ConfigurationError(f"importance= must be a number from 0 to 1, not {importance!r:.80}")
    return float(importance)  # type: ignore[arg-type]


def validate_time(label: str, at: object) -> float | None:
    """Validate a Unix time in seconds or None, and return it. `label` is the argument's name in the error.

    Raises:
        ConfigurationError: The value is not a finite number.
    """
    if at is None:
        return None
    if not isinstance(at, int | float) or isinstance(at, bool) or not math.isfinite(at):
        raise ConfigurationError(
            f"{label}= must be a Unix time in seconds, such as datetime.timestamp(), not {at!r:.80}"
        )
    return float(at)


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise if metadata contains values that cannot be compared.

    Raises:
        ConfigurationError: A name is not a text, or a value is not a text, number, boolean or None.
    """
    for name, value in metadata.items():
        is_plain = value is None or isinstance(value, str | bool | int | float)
        if not isinstance(name, str) or not is_plain:  # type: ignore[redundant-expr]
            raise ConfigurationError(
                f"metadata can have strings, numbers, True, False and None, not {shown(str(name))}={value!r:.80}"
            )


def encode_metadata_value(value: object) -> str:
    """Return a metadata value in a canonical encoding: equal values have equal texts."""
    is_whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if is_whole else value, ensure_ascii=True)  # type: ignore[call-overload]


def normalize_text(text: str) -> str:
    """Return a memory's text in the form in which texts are compared for equality.

    The form is in lower case, without final punctuation and repeated spaces.
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().rstrip(".! ").split())


EVERYTHING = MemoryFilter()


_SOURCES = "actgent.sources"
"""Name in the metadata of a memory of the untrusted sources on which its text depends; missing if it is trusted."""
_READERS = "actgent.readers"
"""Name in the metadata of a memory of its readers in the format of the journal; missing if all owners may read it."""


def metadata_of(sources: str, old: MemoryRecord | None = None) -> dict[str, Any]:
    """Return the argument `metadata` of `remember` or `update` with the untrusted sources and permitted readers of a text.

    Return an empty dict if `sources` is empty.

    Args:
        sources: Untrusted sources and permitted readers of the text, in the format of the journal.
        old: Replaced memory, whose metadata, sources and readers are kept; None for a new memory.
    """
    if not sources:
        return {}
    kept: Mapping[str, Any] = {} if old is None else old.metadata
    names, readers = split_readers(sources if old is None else join_origins(_label_text(old), sources))
    added = {_SOURCES: names, _READERS: readers.removeprefix(READERS)}
    is_set = {_SOURCES: bool(names), _READERS: bool(readers)}
    return {"metadata": {**kept, **{name: value for name, value in added.items() if is_set[name]}}}


def _label_text(memory: MemoryRecord) -> str:
    """Return the label of a memory (its sources and readers), in the format of the journal."""
    return join_origins(str(memory.metadata.get(_SOURCES, "")), readers_of([memory]))


def memory_label(memory: MemoryRecord) -> Label:
    """Return the untrusted sources on which the text of a memory depends, and the owners that may read it."""
    return label_of(_label_text(memory))


def readers_of(memories: Iterable[MemoryRecord]) -> str:
    """Return the owners that may read all of these memories, in the format of the journal; empty if all owners may read them."""
    found = ""
    for each in memories:
        if _READERS in each.metadata:
            found = join_origins(found, f"{READERS}{each.metadata[_READERS]}")
    return found
