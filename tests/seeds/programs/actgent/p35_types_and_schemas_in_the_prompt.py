"""A prompt template lists the types as `- name: description` and documents each schema as JSON.

Document: Instructions and Classification Types, Usage in Prompt Templates.

Differs: Each schema is one line without a fence, and shows the complete answer with its type. A custom template may
render `profile.types` as the document does.
"""

import json

from actgent import Agent, Protocol, ReActAgent, ScriptedLLM, SendReply

TYPES = [
    {"name": "greeting", "description": "General greetings", "schema": {"content": "<your greeting>"}},
    {"name": "order", "description": "An order", "schema": {"item": "<what>"}},
]
FENCED = """\
{% for type in profile.types %}- {{ type.name }}: {{ type.description }}
{% endfor %}{% for type in profile.types %}
{{ type.name }}:
```json
{{ type.schema | tojson }}
```
{% endfor %}"""


class Own(Protocol):
    name, template = "own", FENCED

    def read(self, answer, view):
        return [SendReply(text=answer.text)]


def main() -> None:
    lines = ReActAgent("host", llm=ScriptedLLM([]), types=TYPES).prompts.system_prompt().splitlines()
    assert "- greeting: General greetings" in lines
    assert "- order: An order" in lines
    forms = [json.loads(line) for line in lines if line.startswith("{") and '"messageType"' in line]
    assert {"messageType": "order", "content": {"item": "<what>"}} in forms, forms
    own = Agent("host", llm=ScriptedLLM([]), types=TYPES, protocol=Own()).prompts.system_prompt()
    assert "- order: An order\n" in own and 'order:\n```json\n{"item": "<what>"}\n```' in own, own


main()
