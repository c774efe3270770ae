"""Journals in a schema of PostgreSQL: tables, statements and connections. Needs the extra `postgres`."""
