"""Agents of other products, called over the Agent2Agent protocol (A2A), as tools and as agents of the program."""

from .a2a_agent import A2AAgent
from .a2a_model import A2AModel

__all__ = ["A2AAgent", "A2AModel"]
