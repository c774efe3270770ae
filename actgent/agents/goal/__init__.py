"""Agents that work towards a goal, and `run_agent`, which runs one goal in one call."""

from .goal_agent import GoalAgent
from .goal_result import GoalResult
from .goal_run_metrics import RunMetrics, ToolMetrics
from .run_agent_functions import run_agent, run_agent_sync

__all__ = ["GoalAgent", "GoalResult", "RunMetrics", "ToolMetrics", "run_agent", "run_agent_sync"]
