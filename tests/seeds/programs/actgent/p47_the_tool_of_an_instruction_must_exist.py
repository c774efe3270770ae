"""An instruction can only be mapped to a tool that the agent has.

Document: Tool Registration and Instruction Mapping, Instruction-Mapped Tools ("Enforces proper validation").
"""

import trio

from actgent import ConfigurationError, ReActAgent, ScriptedLLM


async def main() -> None:
    creation = {"name": "Creation", "tool": "AgentGenerator"}
    try:
        async with ReActAgent("smith", llm=ScriptedLLM([]), instructions=[creation]):
            pass
    except ConfigurationError as error:
        assert "'AgentGenerator'" in str(error) and "tools=" in str(error), error
    else:
        raise AssertionError("an instruction was mapped to no tool")


trio.run(main)
