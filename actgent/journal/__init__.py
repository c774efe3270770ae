"""What must survive a turn: a session's state."""
