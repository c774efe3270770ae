"""Protocols between agents and models: each combines a prompt template with a matching classifier."""

import importlib
from typing import Any

# Protocol names in files and on command lines. A protocol is imported when its name is used.
PROTOCOLS: dict[str, str] = {
    "bare": "actgent.protocols.bare_text_protocol:Bare",
    "simple": "actgent.protocols.simple_protocol:Simple",
    "react": "actgent.protocols.react_protocol:ReAct",
    "router": "actgent.protocols.router_protocol:Router",
    "steps": "actgent.protocols.steps_protocol:Steps",
    "plan": "actgent.protocols.plan:Planning",
    "goal": "actgent.protocols.goal.goal_protocol:Goal",
}


def make_protocol(name: str) -> Any:
    """Create the protocol with this name in `PROTOCOLS`, such as `react`, with default options."""
    module, _, cls = PROTOCOLS[name].partition(":")
    return getattr(importlib.import_module(module), cls)()
