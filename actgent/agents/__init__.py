"""What a developer writes and holds: agents, their builders and sessions. Nothing is decided here."""
