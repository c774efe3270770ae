"""Pipelines: steps with dependencies, each done by an agent. A pipeline is an agent, and its runs are sessions."""

from .pipeline import Pipeline, PipelineModel
from .pipeline_files import read_definition
from .pipeline_results import PipelineResult

__all__ = ["Pipeline", "PipelineModel", "PipelineResult", "read_definition"]
