"""`StepsAgent`, which plans and works in steps, and the events of its stream."""

from .steps_agent import StepsAgent

__all__ = ["StepsAgent"]
