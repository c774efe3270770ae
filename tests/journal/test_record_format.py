"""A changed record raises the version of the journal, so that an older release refuses the journal as a whole."""

import hashlib

import attrs
import pytest

from actgent import JournalVersion
from actgent.journal import schema_version
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import DECISION_TAGS, RECORD_TAGS, RECORDS_VERSION
from actgent.messages import MEDIA_TAGS, PART_TAGS
from actgent.support.fast_attrs_constructors import STORED_AS

DIGEST = "049f20e644c6aa9b"
"""Digest of the tags and fields of all records of this version."""
VERSION = 0

REMEDY = """the tags or fields of records changed without a new version.
An older release would open a journal with them and fail at some of its sessions (5 of 9 in a trial).
Increase RECORDS_VERSION in actgent/journal/record_types.py, unless it has increased since the last release, and write here:
DIGEST = {digest!r}; VERSION = {version}"""


def describe(tags):
    """Return the tags of a union with the names of the fields of their classes."""
    return [
        f"{tag}: {' '.join(field.metadata.get(STORED_AS, field.name) for field in attrs.fields(cls))}"
        for tag, cls in sorted(tags.items())
    ]


def test_the_version_rises_with_the_format_of_records():
    """The digest covers the fields of records, and of tagged values inside of them."""
    lines = [line for tags in (MEDIA_TAGS, PART_TAGS, DECISION_TAGS, RECORD_TAGS) for line in describe(tags)]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    assert (digest, RECORDS_VERSION) == (DIGEST, VERSION), REMEDY.format(
        digest=digest, version=RECORDS_VERSION
    )


async def open_once(url, *, read_only=False):
    async with open_journal(url, read_only=read_only) as journal:
        if not read_only:
            await journal.acquire()


async def test_a_journal_of_newer_records_is_rejected(lasting_url, monkeypatch):
    """A release with newer records raises the version of an older journal. The older release then cannot open the journal."""
    await open_once(lasting_url)
    monkeypatch.setattr(schema_version, "RECORDS_VERSION", RECORDS_VERSION + 1)
    with pytest.raises(JournalVersion):  # a reader cannot raise the version
        await open_once(lasting_url, read_only=True)
    for read_only in (False, False, True):
        await open_once(lasting_url, read_only=read_only)
    monkeypatch.undo()
    for read_only in (False, True):
        with pytest.raises(JournalVersion, match=r"use the actgent that wrote it, or a newer one"):
            await open_once(lasting_url, read_only=read_only)
