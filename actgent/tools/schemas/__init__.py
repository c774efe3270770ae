"""What arguments a tool takes, and whether those of a call are such."""
