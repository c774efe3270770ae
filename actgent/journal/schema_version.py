"""Version of a stored journal: the number of its table migrations, and the version of its record classes."""

from collections.abc import Sequence

from actgent.errors import JournalVersion

from .record_types import RECORDS_VERSION

_RECORDS_FACTOR = 1000
"""Factor of the version of the record classes in the number that the storage keeps."""


def schema_version(migrations: Sequence[str]) -> int:
    """Return the version of a journal that has all `migrations` of its tables and the records of this release."""
    return RECORDS_VERSION * _RECORDS_FACTOR + len(migrations)


def count_applied_migrations(version: int, migrations: Sequence[str]) -> int:
    """Return the number of `migrations` that a stored journal with this version has.

    Raises:
        JournalVersion: A newer release wrote the journal.
    """
    records, applied = divmod(version, _RECORDS_FACTOR)
    if records > RECORDS_VERSION or applied > len(migrations):
        raise JournalVersion(version, schema_version(migrations))
    return applied
