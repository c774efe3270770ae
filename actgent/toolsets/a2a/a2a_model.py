"""`A2AModel`: uses a remote agent with A2A as an agent of the program, for example as the receiver of delegated tasks."""

import re
from collections.abc import Sequence
from typing import ClassVar

import trio

from actgent.errors import ConfigurationError, ModelError
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse, OnText
from actgent.messages import Medium, Part, Text, ToolCall, ToolResult

from .a2a_agent import A2AAgent

_CONTEXT = re.compile(r"\n?\(context_id: ([^()\s]+)\)\Z")


class A2AModel(LLM):
    """A model that forwards each message to a remote agent with A2A, and answers with the remote agent's answer.

        translator = A2AAgent("translator", "https://agents.example.com/a2a/translator", auth=Bearer(token))
        await runtime.start(BareAgent("translator", llm=A2AModel(translator), tools=[translator]))

    The agent can be used wherever an agent of the program can: in `session.delegate`, as a tool of other agents, in pipelines and
    teams. Its session is one conversation with the remote agent. Questions of the remote agent are approvals of the session, and
    a task without an answer is a failure of the turn.

    Args:
        agent: The remote agent. It is the only tool of the agent that has this model.

    Raises:
        ConfigurationError: `agent` is not an `A2AAgent`.
    """

    dialect: ClassVar[str] = "a2a"

    def __init__(self, agent: A2AAgent) -> None:
        if not isinstance(agent, A2AAgent):
            raise ConfigurationError(f"the argument of A2AModel must be an A2AAgent, not {agent!r:.200}")
        self.agent = agent
        self.name = f"a2a:{agent.name}"

    def __repr__(self) -> str:
        return f"A2AModel({self.agent!r})"

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        """Forward a message to the remote agent, or return the remote agent's answer.

        If the last message is new, return a tool call that sends its text to the remote agent. If the last message is the result of
        that call, return the result as the answer.

        Raises:
            ModelError: The call to the remote agent failed, or the agent that uses this model lacks the tool for it.
        """
        await trio.lowlevel.checkpoint()
        if all(each.name != self.agent.name for each in chat.tools):
            raise ModelError(
                f"an agent with this A2AModel must also have its remote agent as a tool: tools=[{self.agent.name}]"
            )
        parts = chat.messages[-1].parts if chat.messages else ()
        results = [part for part in parts if isinstance(part, ToolResult)]
        if not results:
            return ModelResponse(parts=(self._call(chat, parts),), stop="tool_calls")
        result = results[-1]
        if result.error is not None:
            raise ModelError(f"{self.agent.name}: {result.error}")
        text = _CONTEXT.sub("", result.content)
        if on_text is not None and text:
            await on_text(text, 0)
        return ModelResponse(parts=(*([Text(text)] if text else []), *result.media))

    def _call(self, chat: ModelRequest, parts: Sequence[Part]) -> ToolCall:
        """Return the tool call that sends the texts of a message to the remote agent.

        If the chat contains an earlier result, the call continues its conversation. Attached files are not sent, only their number.
        """
        arguments = {"message": "\n".join(part.text for part in parts if isinstance(part, Text))}
        if left_out := sum(isinstance(part, Medium) for part in parts):
            arguments["message"] += f"\n({left_out} attached files are not forwarded)"
        for message in reversed(chat.messages):
            for part in message.parts:
                if isinstance(part, ToolResult) and (found := _CONTEXT.search(part.content)):
                    return ToolCall(self.agent.name, {**arguments, "context_id": found[1]})
        return ToolCall(self.agent.name, arguments)
