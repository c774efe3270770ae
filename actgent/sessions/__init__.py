"""Data of a session: conversation, state, turn, and their records in the journal. Starts no task."""
