"""`AgentError` is the base of all errors: one `except` catches all errors of the framework, including errors of custom clients.

Document: Error Handling Strategy, Error Hierarchy.

Differs: The base class is named `ActgentError`, like the package. Write `except ActgentError`.
"""

from actgent import (
    ActgentError,
    InvalidToolSchema,
    LimitReached,
    ModelError,
    ParseError,
    StepsAgent,
    ToolError,
    ToolNotFound,
)

for kind in (ModelError, ToolError, ToolNotFound, LimitReached, ParseError, InvalidToolSchema):
    assert issubclass(kind, ActgentError)


class Client:
    def call(self, messages, **kwargs) -> str:
        raise ValueError("a fault in the client")


try:
    StepsAgent("clerk", llm=Client()).run_sync("Hello?")
except ActgentError as error:
    assert isinstance(error.__cause__, ValueError)
else:
    raise AssertionError("it answered")
