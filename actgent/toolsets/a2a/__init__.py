"""Agents of other products, called over the Agent2Agent protocol (A2A), as tools."""

from .agent import A2AAgent

__all__ = ["A2AAgent"]
