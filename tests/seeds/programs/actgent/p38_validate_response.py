"""`validateResponse(response)` of a classifier ensures that a response has the right format.

Document: Core Architecture, Classifier.
"""

import json

from actgent import BareAgent, ReActAgent, ScriptedLLM, SimpleAgent

TYPES = [{"name": "order", "schema": {"item": "<what>"}}]


def main() -> None:
    simple = SimpleAgent("shop", llm=ScriptedLLM([])).protocol
    good = json.dumps({"messageType": "order", "content": {"item": "tea"}})
    assert simple.validate_response(good, TYPES)
    assert not simple.validate_response(good.replace("item", "other"), TYPES)
    assert not simple.validate_response(good.replace("order", "other"), TYPES)
    assert not simple.validate_response('{"messageType": ', TYPES)

    react = ReActAgent("shop", llm=ScriptedLLM([])).protocol
    direct = {"response_purpose": "DIRECT_RESPONSE", "response_content": {"message": "Hello"}}
    assert react.validate_response(json.dumps({"question_nature": "SIMPLE", "primary_action": direct}))
    wrong = {"response_purpose": "TOOL_INVOCATION", "response_content": {"parameters": {}}}
    assert not react.validate_response(json.dumps({"question_nature": "SIMPLE", "primary_action": wrong}))

    bare = BareAgent("shop", llm=ScriptedLLM([])).protocol
    assert bare.validate_response("Any text is an answer.")


main()
