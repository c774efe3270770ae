"""Evaluation: run cases with checks several times, and compare agents, models and prompts."""

from .case_files import case_from, load_cases, save_cases
from .cases import Case, CheckResult, Trial
from .checks import calls, calls_no_tool, contains, equals, goal_reached, matches
from .evaluate import evaluate
from .html_report import to_html
from .journal_cases import cases_from_journal
from .judge import judged
from .report import Figures, Report
from .simulated_user import SimulatedUser, Simulation, StopReason

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
