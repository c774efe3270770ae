"""An error of the model ends the run with a result that has its status, the error and all partial results.

Document: Production Considerations, Error Handling (Graceful Degradation).
"""

import json

from actgent import ModelError, run_agent_sync


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", 1642)


class Client:
    def __init__(self):
        self.calls = 0

    def call(self, messages, **kwargs) -> str:
        self.calls += 1
        if self.calls > 1:
            raise ConnectionError("no route to the model")
        return json.dumps({"action": "execute", "params": {"tool": "lookup", "args": {}}})


result = run_agent_sync("How deep?", Client(), tools={"lookup": lookup})
assert (result.status, result.achieved) == ("error", False)
assert isinstance(result.failure, ModelError)
assert isinstance(result.failure.__cause__, ConnectionError)
assert "no route to the model" in result.error
assert result.raw_data["depth"] == 1642
