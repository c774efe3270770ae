"""The commands and their options. What a command needs is imported when it runs: `--help` does not wait for it."""

from . import agents, clusters, journals, memories, pipelines, servers, serving
from .base import app

__all__ = ["agents", "app", "clusters", "journals", "memories", "pipelines", "servers", "serving"]
