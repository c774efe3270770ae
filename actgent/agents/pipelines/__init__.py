"""Pipelines: steps with dependencies, each done by an agent. A pipeline is an agent, and its runs are sessions."""

from .definition_files import read_definition
from .outcomes import PipelineResult
from .pipeline import Pipeline

__all__ = ["Pipeline", "PipelineResult", "read_definition"]
