"""Agents for each other: as tools, as addresses, and those that a session is handed over to."""
