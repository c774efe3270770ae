"""Sessions on their way to another journal or another id: exported, forked and renamed."""

from .exporting import (
    ExportedSession,
    SessionExport,
    is_export,
    load_sessions,
    read_sessions,
    save_sessions,
    write_sessions,
)
from .forking import forked
from .renaming import with_new_ids

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
