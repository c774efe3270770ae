"""`classify(message)` of a classifier returns the name of the type of a response.

Document: Classifier-PromptTemplate Design Philosophy, Progressive Complexity.
"""

import json

from actgent import BareAgent, ParseError, ReActAgent, ScriptedLLM, SimpleAgent

TYPES = [{"name": "greeting"}, {"name": "order", "schema": {"item": "<what>"}}]


def main() -> None:
    bare = BareAgent("shop", llm=ScriptedLLM([])).protocol
    assert bare.classify("Whatever it says.", TYPES) == "greeting"  # the first type, always

    simple = SimpleAgent("shop", llm=ScriptedLLM([])).protocol
    assert simple.classify(json.dumps({"messageType": "order", "content": {"item": "tea"}}), TYPES) == "order"

    react = ReActAgent("shop", llm=ScriptedLLM([])).protocol
    content = {"messageType": "order", "item": "tea"}
    action = {"response_purpose": "DIRECT_RESPONSE", "response_content": content}
    assert (
        react.classify(json.dumps({"question_nature": "SIMPLE", "primary_action": action}), TYPES) == "order"
    )

    for protocol in (simple, react):
        try:
            protocol.classify('{"messageType": "unknown", "content": {}}', TYPES)
        except ParseError:
            continue
        raise AssertionError(protocol.name)


main()
