"""What can be asked: the endpoints, their table, and how they say what they find."""
