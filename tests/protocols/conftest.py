"""Shared fixtures of the protocol tests: the types of the specification's table, and a function that reads one text."""

from typing import Any

from actgent.llm.model_interface import ModelResponse
from actgent.messages import Message, Sender, Text
from actgent.protocols.protocol_interface import ClassificationType, Outcome, Profile, Protocol, TurnView

TYPES = (
    ClassificationType(name="greeting", description="a greeting", schema={"content": "<the words>"}),
    ClassificationType(
        name="creation",
        description="create an agent",
        schema={"name": "<its name>", "goal": "<its goal>", "caps": ["<one capability>"]},
        tool="AgentGenerator",
    ),
)


def view(text: str = "hello", **fields: Any) -> TurnView:
    """Return a view of a session at its first message."""
    message = Message(session_id="s", sender=Sender("ada"), parts=(Text(text),))
    profile = fields.pop("profile", Profile(types=TYPES))
    return TurnView(
        message=fields.pop("message", message),
        record=fields.pop("record", [message]),
        state=fields.pop("state", {}),
        profile=profile,
        tools=fields.pop("tools", profile.tools),
        **fields,
    )


def read(protocol: Protocol, text: str, **fields: Any) -> list[Outcome]:
    """Return the outcomes that a protocol reads from an answer's text."""
    return protocol.read(ModelResponse(parts=(Text(text),)), view(**fields))
