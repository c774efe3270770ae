"""What the system says about a journal's files, as the journal's errors, with what to do."""

import errno

from actgent.errors import JournalFailed, JournalFull

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
