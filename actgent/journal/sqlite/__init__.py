"""Journals in SQLite files: the file, its lock and write-ahead log, backups, and recovery of damaged files."""

from .backup import back_up
from .journal import SQLiteJournal
from .lock_file import close_all_locks, lock_path
from .read_only_journal import SQLiteReader
from .recovery import find_problems, recover_file

__all__ = [
    "SQLiteJournal",
    "SQLiteReader",
    "back_up",
    "close_all_locks",
    "find_problems",
    "lock_path",
    "recover_file",
]
