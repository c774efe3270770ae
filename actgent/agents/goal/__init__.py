"""Agents that work towards a goal, and `run_agent`, which runs one goal in one call."""

from .goal_agent import GoalAgent
from .goal_result import GoalResult, RunMetrics, ToolMetrics
from .goal_run_in_one_call import run_agent, run_agent_sync

__all__ = ["GoalAgent", "GoalResult", "RunMetrics", "ToolMetrics", "run_agent", "run_agent_sync"]
