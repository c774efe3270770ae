"""How an agent at work is put together from its parts, each given those below it."""

from .actor import build_actor, build_opener
from .core import build_core
from .deps import AgentDeps
from .models import AgentModels

__all__ = ["AgentDeps", "AgentModels", "build_actor", "build_core", "build_opener"]
