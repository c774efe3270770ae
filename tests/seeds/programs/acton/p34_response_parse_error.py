"""`ResponseParseError` is raised if the answer of the model cannot be parsed, also after a retry with the error.

Document: Error Handling Strategy, ResponseParseError.

Differs: The error is named `ParseError`, because every agent raises this error. Write `except ParseError`. The
attribute `raw` of the error contains the answer.
"""

import json

from actgent import ParseError, ScriptedLLM, StepsAgent

broken = '{"tool_calls": [{"id": "1", '
llm = ScriptedLLM([broken], repeat=True)
try:
    StepsAgent("clerk", llm=llm).run_sync("Hello?")
except ParseError as error:
    assert error.raw == broken
else:
    raise AssertionError("it was read")
assert len(llm.chats) == 3
llm = ScriptedLLM([broken, json.dumps({"final_answer": "Hello."})])
assert str(StepsAgent("clerk", llm=llm).run_sync("Hello?")) == "Hello."
