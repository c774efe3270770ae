"""A run has performance metrics: its time, the calls of the model, the success rate of each tool, and its tokens.

Document: Production Considerations, Monitoring and Debugging (Performance Metrics).
"""

import json

from actgent import ModelResponse, ScriptedLLM, Text, Usage, run_agent_sync


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", {"Baikal": 1642}[args["name"]])


def act(action: str, **params) -> ModelResponse:
    text = json.dumps({"action": action, "params": params})
    return ModelResponse(parts=(Text(text),), usage=Usage(input_tokens=100, output_tokens=10))


model = ScriptedLLM(
    [
        act("execute", tool="lookup", args={"name": "Loch Ness"}),
        act("execute", tool="lookup", args={"name": "Baikal"}),
        act("evaluate", achieved=True, answer="1642 m"),
    ]
)
metrics = run_agent_sync("How deep?", model, tools={"lookup": lookup}).metrics
assert metrics.seconds > 0
assert metrics.model_calls == 3
assert (metrics.tools["lookup"].calls, metrics.tools["lookup"].successful_calls) == (2, 1)
assert (metrics.usage.input_tokens, metrics.usage.output_tokens) == (300, 30)
