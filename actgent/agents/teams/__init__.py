"""Agents for each other: as tools, as addresses, and those that a session is handed over to."""

from .agent_tools import AgentRef, AgentTool, limited
from .handoff import HandoffTool, receivers_among

__all__ = ["AgentRef", "AgentTool", "HandoffTool", "limited", "receivers_among"]
