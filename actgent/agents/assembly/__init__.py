"""Wiring of a running agent: its actor, core, models and deps."""

from .actor import build_actor, build_opener
from .core import build_core
from .deps import AgentDeps
from .models import AgentModels

__all__ = ["AgentDeps", "AgentModels", "build_actor", "build_core", "build_opener"]
