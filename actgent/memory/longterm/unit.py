"""Memories as data: what one holds, which ones are meant, and in what order they were found."""

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from actgent.errors import ConfigurationError
from actgent.errors.printable import shown
from actgent.messages import Sender

LONGEST_TEXT = 8_000
"""Characters of a memory: a fact or an episode, not a document."""
LONGEST_NAME = 200
LONGEST_ID = 1_600
"""Bytes of what memories are found by; with an owner beside it, a row of an index in PostgreSQL has at most 2,704."""
Source = Literal["words", "vectors", "session", "worth"]
"""How a memory was found: by its words, by its vector, as the neighbour of a found one in its session, or by its worth."""


@attrs.frozen
class Association:
    """A link between two memories, which is found from either end."""

    id: str
    """The memory at the other end."""
    relation: str
    """What it is to this one, e.g. `related_to`, `causes`, `part_of`; a word of your own will do."""
    is_from_here: bool
    """True: this memory was linked to the other one; False: that one to this."""


@attrs.frozen(kw_only=True)
class MemoryUnit:
    """Something that is remembered. It is never changed: another one replaces it, and it stays readable as history."""

    id: str
    """Unique in its store."""
    text: str
    """What is remembered, in words."""
    kind: str = "fact"
    """`fact`, `episode`, `procedure`, or a word of the program's own."""
    owner: Sender
    """Whose it is. Nobody else's sessions recall it, unless it is shared."""
    is_shared: bool = False
    """True: everybody recalls it, and its owner alone may replace or forget it."""
    agent: str = ""
    """Who remembered it; empty: a program."""
    session_id: str = ""
    """Where it was said."""
    message_id: str = ""
    """The message that it rests on."""
    importance: float = 0.5
    """From 0 to 1."""
    is_kept: bool = False
    """True: it is never evicted."""
    created_at: float = 0.0
    """Unix time in seconds."""
    last_used: float = 0.0
    """Unix time in seconds at which it was recalled last, or was made."""
    uses: int = 0
    """How often it was recalled."""
    valid_from: float | None = None
    """Unix time in seconds from which it is true; None: always was."""
    valid_until: float | None = None
    """Unix time in seconds from which it is true no more; None: none is known."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    """Texts, numbers, True, False and None, by names of the program's own."""
    replaces: str | None = None
    """The memory in whose place it came."""
    replaced_by: str | None = None
    """The one that came in its place; None: it is what is known now."""


@attrs.frozen
class Recalled:
    """A memory that was found, and how."""

    memory: MemoryUnit
    """What was found."""
    score: float
    """What it was ranked by, more is better; comparable within one answer only."""
    found_by: tuple[Source, ...]
    """`words`: it shares words with the question. `vectors`: its vector was compared. `session`: only the memories before
    or after it in its session were found. `worth`: the question has no words."""


@attrs.frozen(kw_only=True)
class MemoryFilter:
    """Which memories are meant: all that is given has to be true of one.

    Raises:
        ConfigurationError: a list is a text, or a value of `metadata` is no text, number, True, False or None.
    """

    kinds: Sequence[str] = ()
    """Any of these; empty: all."""
    agents: Sequence[str] = ()
    """Remembered by any of these; empty: all."""
    sessions: Sequence[str] = ()
    """Said in any of these; empty: all."""
    since: float | None = None
    """Unix time in seconds: made then or later."""
    until: float | None = None
    """Unix time in seconds: made before."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    """Values that it has, by name."""
    is_kept: bool | None = None
    """True: those that are never evicted; False: the others; None: all."""

    def __attrs_post_init__(self) -> None:
        for name in ("kinds", "agents", "sessions"):
            if isinstance(getattr(self, name), str):
                raise ConfigurationError(
                    f"{name}= takes a list of texts, not {getattr(self, name)!r}: write [{getattr(self, name)!r}]"
                )
        check_metadata(self.metadata)

    @property
    def is_empty(self) -> bool:
        """True if it says nothing, so that all are meant."""
        return self == EVERYTHING


# --- what is given, checked -------------------------------------------------------------


def checked_text(text: object) -> str:
    """The text of a memory, without what no database takes.

    Raises:
        ConfigurationError: it is no text, is blank, or is too long.
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError(f"a memory is a text that is not empty, not {text!r:.80}")
    if len(text) > LONGEST_TEXT:
        raise ConfigurationError(
            f"a memory has at most {LONGEST_TEXT:,} characters, this one has {len(text):,}: remember what matters of it"
        )
    return clean(text).strip()


def clean(text: str) -> str:
    """A text without NUL and halves of surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def checked_id(what: str, text: str) -> str:
    """A text by which memories are found, as databases take it.

    Raises:
        ConfigurationError: no index of PostgreSQL takes it beside an owner.
    """
    cleaned = clean(text)
    if (size := len(cleaned.encode())) > LONGEST_ID:
        raise ConfigurationError(
            f"{what} {cleaned[:20]!r}... has {size:,} bytes in UTF-8, and {LONGEST_ID:,} may be: pass a shorter one, such as a digest of it"
        )
    return cleaned


def checked_name(what: str, name: object) -> str:
    """A word for a kind or a relation.

    Raises:
        ConfigurationError: it is no printable text on one line of at most 200 characters.
    """
    if not isinstance(name, str) or not 0 < len(name.strip()) <= LONGEST_NAME or not name.isprintable():
        raise ConfigurationError(
            f"{what} is a printable word of at most {LONGEST_NAME} characters, not {name!r:.80}"
        )
    return name.strip()


def checked_importance(importance: object) -> float:
    """Return how much a memory counts.

    Raises:
        ConfigurationError: it is no number from 0 to 1.
    """
    is_number = isinstance(importance, int | float) and not isinstance(importance, bool)
    if not is_number or not 0 <= importance <= 1:  # type: ignore[operator]
        raise ConfigurationError(f"importance= is a number from 0 to 1, not {importance!r:.80}")
    return float(importance)  # type: ignore[arg-type]


def checked_time(what: str, at: object) -> float | None:
    """A Unix time, or None.

    Raises:
        ConfigurationError: it is something else.
    """
    if at is None:
        return None
    if not isinstance(at, int | float) or isinstance(at, bool) or not math.isfinite(at):
        raise ConfigurationError(
            f"{what}= is a Unix time in seconds, e.g. datetime.timestamp(), not {at!r:.80}"
        )
    return float(at)


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Refuse what cannot be compared.

    Raises:
        ConfigurationError: a name is no text, or a value no text, number, True, False or None.
    """
    for name, value in metadata.items():
        is_plain = value is None or isinstance(value, str | bool | int | float)
        if not isinstance(name, str) or not is_plain:  # type: ignore[redundant-expr]
            raise ConfigurationError(
                f"metadata holds texts, numbers, True, False and None by name, not {shown(str(name))}={value!r:.80}"
            )


def written_value(value: object) -> str:
    """A value of metadata as it is compared: equal values are written alike."""
    is_whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if is_whole else value, ensure_ascii=True)  # type: ignore[call-overload]


def normal_form(text: str) -> str:
    """A text as it is compared with others: without cases, full stops and spaces that do not count."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().rstrip(".! ").split())


EVERYTHING = MemoryFilter()
