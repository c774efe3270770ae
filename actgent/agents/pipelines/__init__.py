"""Steps over agents with dependencies, as one agent whose runs are sessions."""
