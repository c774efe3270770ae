"""Evaluation: run cases with checks several times, and compare agents, models and prompts."""

from .case_files import case_from, load_cases, save_cases
from .case_runner import evaluate
from .cases_and_results import Case, CheckResult, Trial
from .cases_from_journal import cases_from_journal
from .dataset_folder import DatasetFolder, history_folder, store_report
from .evaluation_html_report import to_html
from .evaluation_report import Figures, Report
from .model_judge import judged
from .predefined_checks import calls, calls_no_tool, contains, equals, goal_reached, matches
from .recorded_answer_comparison import DecisionVariant, compare_decisions
from .recorded_answer_comparison_html import decisions_to_html
from .recorded_answer_comparison_report import (
    ComparedDecision,
    DecisionFigures,
    DecisionReport,
    UnreachedDecisions,
)
from .simulated_user import SimulatedUser, Simulation, StopReason

__all__ = [
    "Case",
    "CheckResult",
    "ComparedDecision",
    "DatasetFolder",
    "DecisionFigures",
    "DecisionReport",
    "DecisionVariant",
    "Figures",
    "Report",
    "SimulatedUser",
    "Simulation",
    "StopReason",
    "Trial",
    "UnreachedDecisions",
    "calls",
    "calls_no_tool",
    "case_from",
    "cases_from_journal",
    "compare_decisions",
    "contains",
    "decisions_to_html",
    "equals",
    "evaluate",
    "goal_reached",
    "history_folder",
    "judged",
    "load_cases",
    "matches",
    "save_cases",
    "store_report",
    "to_html",
]
