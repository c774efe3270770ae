"""Tasks that sessions give to other agents: of the same runtime, and of other pools of a cluster."""

from .giving import Delegation

__all__ = ["Delegation"]
