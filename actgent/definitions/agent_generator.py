"""`create_agent`: a tool with which a model writes the folder of a new agent."""

import json
import os
from pathlib import Path
from typing import Any

from actgent.errors import ConfigurationError, ToolError
from actgent.support.unknown_name_hints import lists_arguments
from actgent.tools.function_tool import FunctionTool

from .folder_creation import write_folder


@lists_arguments
class AgentGenerator(FunctionTool[..., str, Any]):
    """Tool that writes the folder of a new agent below one output folder. It never writes to other folders.

    The new folder passes the check of `actgent check`; an existing folder is never overwritten. The model reads the
    reason if an agent cannot be written. Map the tool to an instruction, so that it only runs with a validated answer:

    ```python
    generator = AgentGenerator("agents")
    creation = Instruction("Creation", "The user wants a new agent.", generator.parameters, tool=generator.name)
    smith = ReActAgent("smith", llm="openai:gpt-5.2", instructions=[creation], tools=[generator])
    ```

    Args:
        output: The folder for new agents; it is created when the first agent is written.
        name: The tool's name.
        description: When a model should call the tool.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        *,
        name: str = "AgentGenerator",
        description: str = "Write the folder of a new agent.",
    ) -> None:
        self.output = Path(output)
        super().__init__(name, description, self._write)

    def _write(
        self,
        *,
        name: str,
        role: str,
        goal: str,
        capabilities: list[str],
        instructions: dict[str, str] | None = None,
        advice: str = "",
    ) -> str:
        """Write the folder of a new agent.

        Args:
            name: Name of the agent and its folder: 1 to 64 lower-case letters, digits, - and _, a letter first.
            role: Who the agent is.
            goal: Purpose of the agent.
            capabilities: What the agent can do, one capability an item.
            instructions: Forms of answer: their names, each with a text that describes when to use it.
            advice: Further text of the system prompt.
        """
        # Values are written as JSON, which is valid YAML, so no text of the model can become a key.
        fields = {"name": name, "role": role, "goal": goal, "capabilities": capabilities}
        front = "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items())
        files = {"brain.md": f"---\n{front}\n---\n{advice}\n"}
        for number, (key, text) in enumerate((instructions or {}).items(), 1):
            files[f"instructions/{number:03}.md"] = (
                f"---\ninstructionName: {json.dumps(key, ensure_ascii=False)}\n---\n{text}\n"
            )
        try:
            self.output.mkdir(parents=True, exist_ok=True)
            made = write_folder(self.output, name, files)
        except (ConfigurationError, OSError) as error:
            raise ToolError(f"The agent was not created: {error}") from error
        return f"made {made.name}: try `actgent run {made.path.name}`"
