"""Journals round other ones, which change a part of what those do."""

from .redaction import Redact, RedactedJournal, check_redact
from .relaxed import RelaxedJournal
from .wrapper import WrappedJournal

__all__ = ["Redact", "RedactedJournal", "RelaxedJournal", "WrappedJournal", "check_redact"]
