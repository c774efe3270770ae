"""A journal in a file of SQLite: the file, its lock and log, backups, and what can be saved of a damaged one."""

from .backup import back_up
from .journal import SQLiteJournal
from .lock import lock_path
from .reader import SQLiteReader
from .salvage import carry_over, find_problems

__all__ = ["SQLiteJournal", "SQLiteReader", "back_up", "carry_over", "find_problems", "lock_path"]
