"""How an agent and a model talk: prompt templates, each with the classifier that belongs to it."""

import importlib
from typing import Any

# Files and command lines know protocols by these names; each is imported when it is named.
PROTOCOLS: dict[str, str] = {
    "bare": "actgent.protocols.bare:Bare",
    "simple": "actgent.protocols.simple:Simple",
    "react": "actgent.protocols.react:ReAct",
    "router": "actgent.protocols.router:Router",
    "steps": "actgent.protocols.steps:Steps",
    "plan": "actgent.protocols.plan:Planning",
    "goal": "actgent.protocols.goal:Goal",
}


def make_protocol(name: str) -> Any:
    """Return a protocol of `PROTOCOLS`, with its defaults."""
    module, _, cls = PROTOCOLS[name].partition(":")
    return getattr(importlib.import_module(module), cls)()
