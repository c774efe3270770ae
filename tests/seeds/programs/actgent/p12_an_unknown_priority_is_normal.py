"""A priority that is not known counts as normal, and the log has a warning.

Document: Core Architecture, AgentCore (message processing through PriorityInbox).
"""

import logging

import trio

from actgent import BareAgent, Priority, ScriptedLLM


async def main() -> None:
    records = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keep()
    logging.getLogger("actgent").addHandler(handler)
    try:
        async with BareAgent("clerk", llm=ScriptedLLM(["Noted."])) as agent:
            session = await agent.create_session("ada")
            await session.chat("Please note.", priority="whatever")
            await session.wait_idle()
    finally:
        logging.getLogger("actgent").removeHandler(handler)
    assert session.history[0].priority is Priority.NORMAL
    warnings = [record.getMessage() for record in records if record.levelno == logging.WARNING]
    assert any("whatever" in text for text in warnings), warnings


trio.run(main)
