"""Agents for each other: an address, and a tool."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from actgent.errors import DeadlineExceeded
from actgent.messages import Reply
from actgent.tools.base import Tool, ToolContext

from .checks import check_seconds
from .runtime import Startable

Run = Callable[..., Awaitable[Reply]]
"""`Agent.run`."""


class AgentRef:
    """An agent's address: each message is a conversation of its own."""

    def __init__(self, name: str, *, run: Run, post: Callable[..., Awaitable[None]]) -> None:
        self.name = name
        self._run = run
        self._post = post

    async def ask(self, content: Any, *, deadline: float = 30) -> Reply:
        """Have the agent answer, within `deadline` seconds; a cancelled ask stops it.

        Raises:
            DeadlineExceeded: no answer in time.
            ActgentError: the error that the conversation ended with.
        """
        check_seconds("deadline", deadline)
        with trio.move_on_after(deadline):
            return await self._run(content)
        raise DeadlineExceeded(f"agent {self.name!r}", deadline)

    async def tell(self, content: Any, *, deadline: float = 30) -> None:
        """Give the agent something to do, and return when its inbox has taken it.

        Raises:
            InboxFull: there was no room within `deadline` seconds.
        """
        await self._post(content, deadline=deadline)


class AgentTool(Tool):
    """An agent as a tool of another: it is given a task in words, and its answer is the result."""

    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "task": {"type": "string", "description": "What to do, in words, with all that is needed for it."}
        },
        "required": ["task"],
        "additionalProperties": False,
    }

    def __init__(self, name: str, description: str, *, run: Run, agent: Startable) -> None:
        self.name = name
        self.description = description
        self.agent = agent
        self._run = run

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        reply = await self._run(arguments["task"])
        return reply.text if reply.data is None else reply.data
