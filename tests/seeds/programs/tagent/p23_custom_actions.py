"""Custom actions with logic of the application are registered by name. The model can choose these actions, and they
update the state.

Document: Action System (Custom Actions); Extension Points, Custom Action Types (register_custom_action).
"""

import json
from typing import Any, Dict, Optional, Tuple

from actgent import CustomAction, ScriptedLLM, run_agent_sync


def convert(state: Dict[str, Any], params: Dict[str, Any]) -> Optional[Tuple[str, Any]]:
    return ("feet", round(state["depth"] * params["factor"]))


def broken(state: Dict[str, Any], params: Dict[str, Any]) -> Optional[Tuple[str, Any]]:
    raise RuntimeError("no converter")


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", 1642)


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params})


model = ScriptedLLM(
    [
        act("execute", tool="lookup", args={}),
        act("broken"),
        act("convert", factor=3.281),
        act("evaluate", achieved=True, answer="5387 ft"),
    ]
)
actions = [
    CustomAction("convert", "Convert metres to feet.", convert),
    CustomAction("broken", "Fail.", broken),
]
result = run_agent_sync("How deep in feet?", model, tools={"lookup": lookup}, actions=actions)
assert result.achieved
assert result.raw_data["feet"] == 5387
assert "Convert metres to feet." in f"{model.chats[0].system} {model.chats[0].messages}"
assert "no converter" in str(model.chats[2].messages)
