"""The agent that plans and works in steps, and the stream of its events."""

from .agent import StepsAgent

__all__ = ["StepsAgent"]
