"""Running agents: runtime, inbox admission, turns, timers, and the life cycle of sessions."""
