"""Wiring of a running agent: its actor, core, models and deps."""

from .actor_assembly import build_actor, build_opener
from .core_assembly import build_core
from .deps_for_tools import AgentDeps
from .models_by_role import AgentModels

__all__ = ["AgentDeps", "AgentModels", "build_actor", "build_core", "build_opener"]
