"""Results and errors of a tool in one JSON envelope."""

import json

from actgent import EnvelopedTool, ToolCall, ToolError, ToolRegistry, tool
from actgent.tools.tool_execution import Batch


async def result_of(inner, arguments=None):
    registry = ToolRegistry([EnvelopedTool(inner)])
    batch = Batch([ToolCall(inner.name, arguments or {}, "c1")], registry)
    await batch.run()
    return batch.results()[0]


async def test_returned_tool_result_is_unchanged():
    @tool(thread=False)
    def add(a: int, b: int) -> dict:
        """Add."""
        return {"sum": a + b}

    result = await result_of(add, {"a": 1, "b": 2})
    assert (result.status, json.loads(result.content)) == ("success", {"success": True, "result": {"sum": 3}})
    assert EnvelopedTool(add).spec == add.spec


async def test_error_keeps_status_and_text():
    @tool
    async def fail() -> str:
        """Fail."""
        raise ToolError("the door is shut")

    result = await result_of(fail)
    error_text = json.loads(result.error)
    assert result.status == "error"
    assert (error_text["success"], error_text["error"]["message"], error_text["error"]["details"]) == (
        False, "the door is shut", "ToolError",
    )  # fmt: skip


async def test_declared_errors_are_retried(autojump_clock):
    """The number of retries is that of the inner tool. The last error is in its envelope."""
    tries = []

    @tool(retries=2, retry_on=ConnectionError)
    async def shaky(times: int) -> str:
        """Fail a few times."""
        tries.append(1)
        if len(tries) <= times:
            raise ConnectionError("gone")
        return "there"

    assert json.loads((await result_of(shaky, {"times": 2})).content)["result"] == "there"
    assert len(tries) == 3
    tries.clear()
    result = await result_of(shaky, {"times": 9})
    assert len(tries) == 3
    assert json.loads(result.error)["error"]["message"] == "ConnectionError: gone"


def test_wrapped_tool_delegates_other_attributes():
    @tool(effect="idempotent", timeout=3, exclusive=True, approval=True)
    async def careful() -> str:
        """Be careful."""
        return ""

    outer = EnvelopedTool(careful)
    assert (outer.effect, outer.timeout, outer.exclusive, outer.approval) == ("idempotent", 3, True, True)


async def test_undeclared_errors_are_not_retried(autojump_clock):
    tries = []

    @tool(retries=2, retry_on=ConnectionError)
    async def wrong() -> str:
        """Fail in another way."""
        tries.append(1)
        raise KeyError("x")

    assert json.loads((await result_of(wrong)).error)["error"]["details"] == "KeyError"
    assert len(tries) == 1
