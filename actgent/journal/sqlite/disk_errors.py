"""What the system and SQLite say about a journal's files, as the journal's errors, with what to do."""

import errno

import apsw

from actgent.errors import Fenced, JournalDamaged, JournalError, JournalFailed, JournalFull

NO_SPACE = "no space for the journal: free some, or name another place; nothing of the step was written"
WRITABLE = (
    "let this user write it, its folder and what stands beside it, or name or copy the journal elsewhere"
)


def is_full(error: OSError) -> bool:
    """Return True if there is no space."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_failure(error: OSError) -> JournalFull | JournalFailed:
    """The journal's error for one of the system."""
    if is_full(error):
        return JournalFull(f"{NO_SPACE} ({error.strerror})")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return JournalFailed(f"the journal cannot be read or written ({error.strerror}): {WRITABLE}")
    return JournalFailed(f"the journal's file failed: {error}")


class translated:  # noqa: N801 - a block; as a generator it would cost several times as much
    """SQLite's errors as ours."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Nothing is to be done before."""

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
