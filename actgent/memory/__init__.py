"""What an agent remembers of a session."""
