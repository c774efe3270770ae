"""Limits, budgets, schedules and timers of agents. The package decides and computes; it never waits."""
