"""An unknown priority counts as normal, with a warning in the log. A misspelt priority is an error that suggests the correct one.

Document: Core Architecture, AgentCore (message processing through PriorityInbox).
"""

import logging

import trio

from actgent import BareAgent, ConfigurationError, Priority, ScriptedLLM


class Keep(logging.Handler):
    def __init__(self):
        super().__init__()
        self.warnings = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            self.warnings.append(record.getMessage())


async def main() -> None:
    handler = Keep()
    logging.getLogger("actgent").addHandler(handler)
    try:
        async with BareAgent("clerk", llm=ScriptedLLM(["Noted."])) as agent:
            session = await agent.create_session("ada")
            await session.chat("Please note.", priority="whatever")
            await session.wait_idle()
            try:
                await session.chat("Please note.", priority="hihg")
            except ConfigurationError as error:
                assert "hihg" in str(error) and "HIGH" in str(error)
            else:
                raise AssertionError("a misspelt priority was taken")
    finally:
        logging.getLogger("actgent").removeHandler(handler)
    assert session.history[0].priority is Priority.NORMAL
    assert len(session.history) == 2
    assert any("whatever" in text for text in handler.warnings), handler.warnings


trio.run(main)
