"""Tags and metadata of a session: their limits, changes and stored form, and the SQL conditions that find sessions by them."""

import json
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from actgent.errors import ConfigurationError, JournalDamaged
from actgent.errors.text_escaping import quoted
from actgent.support.attrs_class_repr import FieldRepr

MAX_TAGS = 32
"""Maximum number of tags of a session."""
MAX_TAG_CHARS = 64
"""Maximum length of a tag, in characters."""
MAX_METADATA_KEYS = 16
"""Maximum number of metadata keys of a session."""
MAX_KEY_CHARS = 64
"""Maximum length of a metadata key, in characters."""
MAX_VALUE_CHARS = 512
"""Maximum length of a metadata value, in characters."""
NO_SESSION_METADATA: Mapping[str, str] = MappingProxyType({})
"""Metadata of a session without metadata."""
_KEY = re.compile(r"[A-Za-z0-9._-]+")


@attrs.frozen(kw_only=True, repr=False)
class SessionAnnotations(FieldRepr):
    """Tags and metadata of a session."""

    tags: tuple[str, ...] = ()
    """Tags of the session, sorted, each once."""
    metadata: Mapping[str, str] = NO_SESSION_METADATA
    """Metadata values of the session by key."""

    def __bool__(self) -> bool:
        """Return True if there is a tag or a metadata key."""
        return bool(self.tags or self.metadata)

    def includes(self, tags: Iterable[str], metadata: Mapping[str, str]) -> bool:
        """Return True if all these tags and metadata values are present."""
        return all(tag in self.tags for tag in tags) and self.metadata.items() >= metadata.items()

    def apply(self, change: "AnnotationChange") -> "SessionAnnotations":
        """Apply a change, and return the resulting tags and metadata.

        Raises:
            ConfigurationError: There would be more than `MAX_TAGS` tags or `MAX_METADATA_KEYS` keys.
        """
        tags = sorted({*self.tags, *change.add_tags} - {*change.remove_tags})
        merged = {**self.metadata, **change.metadata}
        metadata = {key: value for key, value in merged.items() if value is not None}
        if len(tags) > MAX_TAGS:
            raise ConfigurationError(
                f"a session has at most {MAX_TAGS} tags, not {len(tags)}: pass fewer, or remove others by remove_tags="
            )
        if len(metadata) > MAX_METADATA_KEYS:
            raise ConfigurationError(
                f"the metadata of a session has at most {MAX_METADATA_KEYS} keys, not {len(metadata)}: pass fewer, or remove "
                "others by annotate(metadata={key: None})"
            )
        return SessionAnnotations(tags=tuple(tags), metadata=MappingProxyType(metadata))


NO_ANNOTATIONS = SessionAnnotations()
"""Annotations of a session without tags and metadata."""


@attrs.frozen(kw_only=True, repr=False)
class AnnotationChange(FieldRepr):
    """A change of a session's tags and metadata. `make_annotation_change` creates it from arguments of a program."""

    add_tags: tuple[str, ...] = ()
    """Tags to add to the session."""
    remove_tags: tuple[str, ...] = ()
    """Tags to remove; takes precedence over `add_tags`. Missing tags are ignored."""
    metadata: Mapping[str, str | None] = attrs.field(factory=dict)
    """New values by key. None removes the key. Other keys keep their values."""


def make_annotation_change(
    *, add_tags: Iterable[str] = (), remove_tags: Iterable[str] = (), metadata: object = None
) -> AnnotationChange:
    """Validate a change of a session's tags and metadata.

    Raises:
        ConfigurationError: A tag, key or value is invalid.
    """
    return AnnotationChange(
        add_tags=tuple(check_tags("add_tags", add_tags)),
        remove_tags=tuple(check_tags("remove_tags", remove_tags)),
        metadata=_check_metadata(metadata, may_remove=True),
    )


def new_annotations(tags: Iterable[str], metadata: object) -> SessionAnnotations:
    """Return the tags and metadata of a new session after validation. None as metadata means no metadata.

    Raises:
        ConfigurationError: A tag, key or value is invalid, or there are too many.
    """
    if tags == () and metadata is None:
        return NO_ANNOTATIONS
    checked = check_tags("tags", tags)
    return NO_ANNOTATIONS.apply(AnnotationChange(add_tags=checked, metadata=check_session_metadata(metadata)))


def check_tags(name: str, tags: object) -> tuple[str, ...]:
    """Return tags as a tuple after validation. `name` is the name of the argument in the error.

    Raises:
        ConfigurationError: The value is not a collection of tags.
    """
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise ConfigurationError(f"{name}= must be a list of strings, not {tags!r:.200}")
    found = tuple(tags)
    for tag in found:
        is_word = isinstance(tag, str) and tag.isprintable() and tag == tag.strip() and "," not in tag
        if not is_word or not 0 < len(tag) <= MAX_TAG_CHARS:
            raise ConfigurationError(
                f"{name}= has the invalid tag {tag!r:.100}: a tag is a string of 1 to {MAX_TAG_CHARS} printable "
                "characters without a comma, and without spaces at its ends"
            )
    return found


def check_session_metadata(metadata: object) -> Mapping[str, str]:
    """Return the metadata of a session as a dict after validation; an empty dict for None.

    Raises:
        ConfigurationError: The value is not a mapping from str to str, or a key or value is invalid.
    """
    return _check_metadata(metadata, may_remove=False)


def _check_metadata(metadata: object, *, may_remove: bool) -> dict[str, Any]:
    """Return metadata as a dict. `may_remove` permits None as a value."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise ConfigurationError(
            f"metadata= of a session must be a mapping of strings to strings, not {metadata!r:.200}"
        )
    for key, value in metadata.items():
        if not isinstance(key, str) or len(key) > MAX_KEY_CHARS or not _KEY.fullmatch(key):
            raise ConfigurationError(
                f"metadata= of a session has the invalid key {key!r:.100}: a key has 1 to {MAX_KEY_CHARS} "
                "characters of A-Z a-z 0-9 . _ -"
            )
        if may_remove and value is None:
            continue
        if not isinstance(value, str) or len(value) > MAX_VALUE_CHARS or not _is_storable(value):
            raise ConfigurationError(
                f"metadata= of a session has the invalid value {quoted(repr(value), 100)} of {key}: a value is a string of "
                f"at most {MAX_VALUE_CHARS} characters, without NUL and lone surrogates"
            )
    return dict(metadata)


def _is_storable(text: str) -> bool:
    return "\0" not in text and text.encode("utf-8", "replace").decode() == text


# --- stored form -------------------------------------------------------------------------


def encode_annotations(tags: Iterable[str], metadata: Mapping[str, str]) -> str | None:
    """Return the stored form of tags and metadata: JSON, or None if there are none.

    NUL and lone surrogates are replaced by `?`, because databases cannot store them.
    """
    if not tags and not metadata:
        return None
    known = {"tags": sorted({_clean(tag) for tag in tags})} if tags else {}
    values = {key: _clean(value) for key, value in metadata.items()}
    return json.dumps({**known, **({"metadata": values} if values else {})}, ensure_ascii=False)


def decode_annotations(text: str, session_id: str) -> SessionAnnotations:
    """Return tags and metadata from their stored form.

    Raises:
        JournalDamaged: The text is not the stored form of annotations.
    """
    try:
        stored = json.loads(text)
        tags, metadata = tuple(stored.get("tags", ())), MappingProxyType(dict(stored.get("metadata", {})))
    except (ValueError, TypeError, AttributeError):
        raise JournalDamaged("the tags of the session are unreadable", session_id=session_id) from None
    return SessionAnnotations(tags=tags, metadata=metadata)


def _clean(text: str) -> str:
    return text if _is_storable(text) else text.encode("utf-8", "replace").decode().replace("\0", "?")


# --- SQL conditions ----------------------------------------------------------------------


Condition = tuple[str, tuple[str, ...]]
"""A SQL condition, and the values of its placeholders."""


def sqlite_condition(column: str, tags: Iterable[str], metadata: Mapping[str, str]) -> Condition | None:
    """Build the SQL condition that a session has all `tags` and `metadata` values, with `?` placeholders.

    `column` is the column with the stored annotations. Return None if there are no tags and no metadata.
    """
    is_tag = f"SELECT 1 FROM json_each({column}, '$.tags') AS tag WHERE tag.value = ?"  # noqa: S608 - a column name
    is_pair = f"SELECT 1 FROM json_each({column}, '$.metadata') AS pair WHERE pair.key = ? AND pair.value = ?"  # noqa: S608
    found: list[tuple[str, tuple[str, ...]]] = [(is_tag, (tag,)) for tag in tags]
    found += [(is_pair, pair) for pair in metadata.items()]
    if not found:
        return None
    conditions = [f"{column} IS NOT NULL", *(f"EXISTS ({query})" for query, _ in found)]
    return " AND ".join(conditions), tuple(value for _, values in found for value in values)


def postgres_condition(column: str, tags: Iterable[str], metadata: Mapping[str, str]) -> Condition | None:
    """Build the SQL condition that a session has all `tags` and `metadata` values, with a `%s` placeholder.

    `column` is the column with the stored annotations, whose index `annotated` is used. Return None if there are no
    tags and no metadata.
    """
    wanted = encode_annotations(tuple(tags), metadata)
    if wanted is None:
        return None
    return f"{column} IS NOT NULL AND {column}::jsonb @> %s::jsonb", (wanted,)
