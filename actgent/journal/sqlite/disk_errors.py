"""Translation of errors of the operating system and of SQLite to errors of the journal, with a remedy."""

import errno

import apsw

from actgent.errors import Fenced, JournalDamaged, JournalError, JournalFailed, JournalFull

NO_SPACE = "the disk of the journal is full: free space or move the journal; the records were not written"
WRITABLE = (
    "give this user write access to the file, its folder and its -wal and -lock files, or move the journal"
)


def is_full(error: OSError) -> bool:
    """Return True if an error means that the disk or quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_failure(error: OSError) -> JournalFull | JournalFailed:
    """Return the journal error for an error of the operating system."""
    if is_full(error):
        return JournalFull(f"{NO_SPACE} ({error.strerror})")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return JournalFailed(f"the journal cannot be read or written ({error.strerror}): {WRITABLE}")
    return JournalFailed(f"the journal's file failed: {error}")


class translate_errors:  # noqa: N801 - used like a function; a generator would be several times slower
    """Context manager that translates errors of SQLite and of the operating system to journal errors."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and (ours := _ours(error)) is not None:
            raise ours from error


def _ours(error: BaseException) -> JournalError | Fenced | None:  # noqa: PLR0911 - a table
    match error:
        case apsw.FullError():
            return JournalFull(f"{NO_SPACE} ({error})")
        case apsw.CorruptError() | apsw.NotADBError() | apsw.ConstraintError() | UnicodeDecodeError():
            return JournalDamaged(str(error))
        case apsw.BusyError() | apsw.LockedError():
            return Fenced(f"another program holds the journal's file: {error}")
        case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
            return JournalFailed(f"the journal's file cannot be opened or written ({error}): {WRITABLE}")
        case OSError():
            return disk_failure(error)
        case apsw.Error():
            return JournalFailed(f"the journal's file failed: {error}")
    return None
