"""Journals that wrap another journal and change part of its behaviour."""

from .redaction import Redact, RedactedJournal, check_redact
from .wrapper import AsyncCommitJournal, WrappedJournal

__all__ = ["AsyncCommitJournal", "Redact", "RedactedJournal", "WrappedJournal", "check_redact"]
