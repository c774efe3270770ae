"""Deterministic simulation of agents: crashes, slow disks, concurrent callers and failing models, all from a seed."""

from .fault_and_workload_plan import Settings
from .run_report import SessionStory, Story, ToolRun
from .simulated_program import invariant, simulated
from .single_seed_run import SeedOutcome, play

__all__ = ["SeedOutcome", "SessionStory", "Settings", "Story", "ToolRun", "invariant", "play", "simulated"]
