"""Journals: durable, append-only records of sessions, in SQLite, in PostgreSQL or in memory."""
