"""Restoring of sessions from their journal records, and snapshots that speed it up."""
