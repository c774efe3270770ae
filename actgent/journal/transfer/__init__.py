"""Copies of sessions in other journals or under new ids: export files, forks and id remapping."""

from .export_file import (
    ExportedSession,
    SessionExport,
    is_export,
    load_sessions,
    read_sessions,
    save_sessions,
    write_sessions,
)
from .id_remapping import with_new_ids
from .session_fork import forked

__all__ = [
    "ExportedSession",
    "SessionExport",
    "forked",
    "is_export",
    "load_sessions",
    "read_sessions",
    "save_sessions",
    "with_new_ids",
    "write_sessions",
]
