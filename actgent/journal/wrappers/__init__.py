"""Journals that wrap another journal and change part of its behaviour."""

from .journal_wrapper import AsyncCommitJournal, WrappedJournal
from .redaction import Redact, RedactedJournal, check_redact

__all__ = ["AsyncCommitJournal", "Redact", "RedactedJournal", "WrappedJournal", "check_redact"]
