"""`BareAgent`, the agent class without an answer format."""

from actgent.messages import DataT_co
from actgent.tools.base import DepsT

from .agent import Agent


class BareAgent(Agent[DataT_co, DepsT]):
    """An agent whose answers are plain text."""
