"""Agents that work towards a goal on their own, and the shortest way to one answer from them."""

from .agent import GoalAgent
from .report import RunMetrics, ToolMetrics
from .result import GoalResult
from .run import run_agent, run_agent_sync

__all__ = ["GoalAgent", "GoalResult", "RunMetrics", "ToolMetrics", "run_agent", "run_agent_sync"]
