"""What sessions and their callers wait for: people, dates, tasks of others, and what comes of a turn."""
