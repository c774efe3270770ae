"""What keeps agents in bounds: limits and budgets, dates, and who waits for whom. All of it decides, and never waits."""
