"""Deterministic simulation of agents: crashes, slow disks, concurrent callers and failing models, all from a seed."""

from .run_report import SessionStory, Story, ToolRun
from .scenario import SeedOutcome, play
from .seed_plan import Settings
from .simulated_program import invariant, simulated

__all__ = ["SeedOutcome", "SessionStory", "Settings", "Story", "ToolRun", "invariant", "play", "simulated"]
