"""Agents that work for other agents: as tools, as addresses, by handoff, and in other pools."""

from .agents_as_tools import AgentRef, AgentTool, excluding_approval_waits
from .handoff import HandoffTool, receivers_among

__all__ = ["AgentRef", "AgentTool", "HandoffTool", "excluding_approval_waits", "receivers_among"]
