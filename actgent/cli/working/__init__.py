"""Commands that have agents work, and tell what came of it."""
