"""Steps over agents with dependencies, as one agent whose runs are sessions."""

from .files import read_definition
from .outcomes import PipelineResult
from .pipeline import Pipeline

__all__ = ["Pipeline", "PipelineResult", "read_definition"]
