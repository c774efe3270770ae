"""The final output is formatted as a pydantic model: `output_format` of the run.

Document: Main Agent Loop (format_final_output); Extension Points, Output Format Handlers.

Differs: The argument is named `output=`, as for every run of actgent. `output=` also takes dataclasses, TypedDicts
and JSON Schemas. Write `run_agent_sync(goal, model, output=CustomOutputFormat)`.
"""

import json
from typing import Any, Dict, List

from pydantic import BaseModel

from actgent import ScriptedLLM, run_agent_sync


class CustomOutputFormat(BaseModel):
    """Custom output structure for specific use cases."""

    results: List[Dict[str, Any]]
    metadata: Dict[str, str]
    confidence: float


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", 1642)


script = [
    {"action": "execute", "params": {"tool": "lookup", "args": {}}},
    {"action": "evaluate", "params": {"achieved": True, "answer": "1642 m"}},
    {"results": [{"depth": 1642}], "confidence": 0.9},
    {"results": [{"depth": 1642}], "metadata": {"lake": "Baikal"}, "confidence": 0.9},
]
model = ScriptedLLM([json.dumps(each) for each in script])
result = run_agent_sync("How deep?", model, tools={"lookup": lookup}, output=CustomOutputFormat)
assert result.status == "completed_with_formatting"
assert result.data == CustomOutputFormat(
    results=[{"depth": 1642}], metadata={"lake": "Baikal"}, confidence=0.9
)
