"""Tables of an agent's own, beside its journal: plain SQL, migrations, and changes that a repeated call makes once."""

from .database import CallDatabase, Database

__all__ = ["CallDatabase", "Database"]
