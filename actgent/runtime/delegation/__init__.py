"""Tasks that sessions give to other agents: of the same runtime, and of other pools of a cluster."""
