"""Definitions of all commands and options. Implementations are imported when a command runs, so that `--help` stays fast."""

from actgent.cli.commands import agents, clusters, journals, mcp, memories, pipelines, serving, simulations

from .command_app import app

__all__ = ["agents", "app", "clusters", "journals", "mcp", "memories", "pipelines", "serving", "simulations"]
