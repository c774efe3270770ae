"""An SQL database for an agent's tools: plain SQL, migrations, and idempotent changes for repeated tool calls."""

from .database import CallDatabase, Database

__all__ = ["CallDatabase", "Database"]
