"""An output handler is a function that converts the state of the agent to a custom format.

Document: Extension Points, Output Format Handlers (format_custom_output).
"""

import json
from typing import Any, Dict, List

from pydantic import BaseModel

from actgent import ScriptedLLM, run_agent_sync


class CustomOutputFormat(BaseModel):
    results: List[Dict[str, Any]]
    metadata: Dict[str, str]
    confidence: float


def format_custom_output(state: Dict[str, Any]) -> CustomOutputFormat:
    """Convert agent state to custom output format."""
    return CustomOutputFormat(
        results=state.get("results", []),
        metadata=state.get("metadata", {}),
        confidence=state.get("confidence", 0.0),
    )


def measure(state, args):
    """Measure it."""
    return [("metadata", {"lake": "Baikal"}), ("confidence", 0.5)]


decisions = [
    {"action": "execute", "params": {"tool": "measure", "args": {}}},
    {"action": "evaluate", "params": {"achieved": True, "answer": "measured"}},
]
for script, achieved in ((decisions, True), (decisions[:1], False)):
    model = ScriptedLLM([json.dumps(each) for each in script] + ["no JSON"] * 3)
    result = run_agent_sync("Measure it.", model, tools={"measure": measure}, output=format_custom_output)
    assert result.achieved is achieved
    assert result.data.metadata == {"lake": "Baikal"}
    assert result.data.confidence == 0.5
    assert [each["tool"] for each in result.data.results] == ["measure"]
