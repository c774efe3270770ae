"""Deterministic simulation of agents: crashes, slow disks, concurrent callers and failing models, all from a seed."""

from .program import invariant, simulated
from .scenario import SeedOutcome, Settings, play
from .story import SessionStory, Story, ToolRun

__all__ = ["SeedOutcome", "SessionStory", "Settings", "Story", "ToolRun", "invariant", "play", "simulated"]
