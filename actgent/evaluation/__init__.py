"""Evaluation: cases with checks, run several times, side by side for agents, models and prompts."""

from .cases import Case, CheckResult, Trial
from .checks import calls, calls_no_tool, contains, equals, goal_reached, matches
from .evaluate import evaluate
from .from_journal import cases_from_journal
from .judge import judged
from .loading import case_from, load_cases, save_cases
from .page import to_html
from .report import Figures, Report
from .simulated import SimulatedUser, Simulation, StopReason

__all__ = [
    "Case",
    "CheckResult",
    "Figures",
    "Report",
    "SimulatedUser",
    "Simulation",
    "StopReason",
    "Trial",
    "calls",
    "calls_no_tool",
    "case_from",
    "cases_from_journal",
    "contains",
    "equals",
    "evaluate",
    "goal_reached",
    "judged",
    "load_cases",
    "matches",
    "save_cases",
    "to_html",
]
