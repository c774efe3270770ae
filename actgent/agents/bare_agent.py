"""`BareAgent`, the agent class without an answer format."""

from actgent.messages import DataT_co
from actgent.tools.tool_interface import DepsT

from .agent import Agent


class BareAgent(Agent[DataT_co, DepsT]):
    """An agent whose answers are plain text: the model needs no answer format."""
