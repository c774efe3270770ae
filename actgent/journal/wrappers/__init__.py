"""Journals that wrap another journal and change part of its behaviour."""

from .async_commit import AsyncCommitJournal
from .redaction import Redact, RedactedJournal, check_redact
from .wrapper import WrappedJournal

__all__ = ["AsyncCommitJournal", "Redact", "RedactedJournal", "WrappedJournal", "check_redact"]
