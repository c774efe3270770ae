"""New providers of models are integrated by name: `integrate_custom_llm(provider_name, client_class)`.

Document: Extension Points, Model Integration.

Differs: The function is named `register_provider`. A model is then `"NAME:MODEL"`, so that one class serves all its
models. Write `register_provider("acme", AcmeClient)` and `run_agent_sync(goal, "acme:small")`.
"""

import json

from actgent import register_provider, run_agent_sync


class AcmeClient:
    def __init__(self, model: str) -> None:
        answer = {"achieved": True, "answer": f"{model} says 42"}
        self.script = [("summarize", {"summary": "42"}), ("evaluate", answer)]

    def call(self, messages, **kwargs) -> str:
        action, params = self.script.pop(0)
        return json.dumps({"action": action, "params": params})


register_provider("acme-of-tagent", AcmeClient, replace=True)
result = run_agent_sync("What is the answer?", "acme-of-tagent:small")
assert result.achieved
assert "small says 42" in str(result)
