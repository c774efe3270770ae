"""Contents of the log: agents, kinds and places; with redaction never contents or keys."""

import logging

import pytest

from actgent import (
    BareAgent,
    NotAuthorized,
    ScriptedLLM,
    SimpleAgent,
    ToolCall,
    ToolError,
    open_runtime,
    tool,
)
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Text

SECRET = "sesame-4711"


@tool
def leak(word: str) -> str:
    """Fail with the argument in the error."""
    raise ToolError(f"no {word}")


def _raise(payload):
    raise ValueError(f"could not take {payload} {SECRET}")


async def _everything(caplog):
    """Run a session in which all possible failures happen, with a secret in every text."""
    script = [
        ToolCall("leak", {"word": SECRET}),
        f"bad {SECRET}",
        f"worse {SECRET}",
        f"worst {SECRET}",
        NotAuthorized(f"the key {SECRET} is wrong"),
        ModelResponse(parts=(Text(f"no {SECRET}"),), stop="refusal"),
        RuntimeError(f"a bug with {SECRET}"),
        f'{{"messageType": "DIRECT_RESPONSE", "content": "{SECRET}"}}',
    ]
    async with open_runtime(redact=str) as runtime:
        agent = await runtime.start(SimpleAgent("a", llm=ScriptedLLM(script), tools=[leak], debug=True))
        session = await agent.create_session("ada", f"hi {SECRET}")
        await session.wait_idle()
        for _ in range(3):
            await session.chat(f"more {SECRET}")
            await session.wait_idle()
        session.on_conversation(_raise)
        session.on_tool_result(_raise)
        session.on_exception(_raise)
        await session.chat(f"last {SECRET}")
        await session.wait_idle()


async def test_redacting_runtime_logs_no_contents(caplog):
    """No log level, no traceback and no `debug` output has contents."""
    caplog.set_level(logging.DEBUG, logger="actgent")
    await _everything(caplog)
    formatter = logging.Formatter()
    text = "\n".join(
        formatter.format(record) for record in caplog.records if record.name.startswith("actgent")
    )
    assert SECRET not in text
    assert "_raise" in text
    assert "ValueError" in text


async def test_a_failure_without_a_handler_is_logged(caplog):
    """The log names agent, session, message, kind and remedy."""
    async with BareAgent("a", llm=ScriptedLLM([NotAuthorized("no")])) as agent:
        session = await agent.create_session("ada", "hi")
        await session.wait_idle()
    (record,) = caplog.records
    for word in ("a", session.id, session.history[0].id, "model", "NotAuthorized", "on_exception"):
        assert word in record.getMessage()


@pytest.mark.parametrize("how", ["handler", "run"])
async def test_a_failure_with_a_handler_is_not_logged(caplog, how):
    """The handler is responsible for it."""
    async with BareAgent("a", llm=ScriptedLLM([NotAuthorized("no")])) as agent:
        if how == "run":
            with pytest.raises(NotAuthorized):
                await agent.run("hi")
        else:
            session = await agent.create_session("ada", "hi")
            session.on_exception(lambda _: None)
            await session.wait_idle()
    assert caplog.records == []
