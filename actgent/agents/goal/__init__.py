"""Agents that work towards a goal, and `run_agent`, which runs one goal in one call."""

from .agent import GoalAgent
from .metrics import RunMetrics, ToolMetrics
from .result import GoalResult
from .run import run_agent, run_agent_sync

__all__ = ["GoalAgent", "GoalResult", "RunMetrics", "ToolMetrics", "run_agent", "run_agent_sync"]
