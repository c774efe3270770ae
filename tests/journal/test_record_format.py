"""A changed record raises the schema version, so that an older release refuses the journal as a whole."""

import hashlib

import attrs

from actgent.journal.postgres.schema import MIGRATIONS as POSTGRES
from actgent.journal.record_types import DECISION_TAGS, RECORD_TAGS
from actgent.journal.sqlite.schema import MIGRATIONS as SQLITE
from actgent.messages import MEDIA_TAGS, PART_TAGS
from actgent.support.fast_attrs_constructors import STORED_AS

DIGEST = "049f20e644c6aa9b"
"""Digest of the tags and fields of all records, and the schema versions that have them."""
VERSIONS = (15, 23)

REMEDY = """records have other tags or fields than the schema versions (SQLite, PostgreSQL) say.
An older release would open a journal with them and fail at some of its sessions (5 of 9 in a trial).
Append a migration to both lists, e.g. "SELECT 1" with a comment that names the change, and write here:
DIGEST = {digest!r}; VERSIONS = {versions}"""


def describe(tags):
    """Return the tags of a union with the names of the fields of their classes."""
    return [
        f"{tag}: {' '.join(field.metadata.get(STORED_AS, field.name) for field in attrs.fields(cls))}"
        for tag, cls in sorted(tags.items())
    ]


def test_the_schema_version_rises_with_the_format_of_records():
    """The digest covers the fields of records, and of tagged values inside of them."""
    lines = [line for tags in (MEDIA_TAGS, PART_TAGS, DECISION_TAGS, RECORD_TAGS) for line in describe(tags)]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    versions = (len(SQLITE), len(POSTGRES))
    assert (digest, versions) == (DIGEST, VERSIONS), REMEDY.format(digest=digest, versions=versions)
