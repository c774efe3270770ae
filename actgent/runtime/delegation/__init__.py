"""Delegation of tasks from a session to agents of the same runtime or of other pools in a cluster."""
