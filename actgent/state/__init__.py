"""State of a session: an immutable mapping that changes only by dispatched actions."""
