"""A pair converts the response of the model to a standard internal format, and its own format does not leak to handlers.

Document: Encapsulated Protocol Pattern, Protocol Boundaries ("Don't leak protocol details").
"""

import json

from actgent import (
    BareAgent,
    Message,
    ModelResponse,
    Profile,
    ReActAgent,
    ScriptedLLM,
    Sender,
    SendReply,
    SimpleAgent,
    Text,
    TurnView,
)

TEXTS = {
    BareAgent: "It is noon.",
    SimpleAgent: json.dumps({"messageType": "DIRECT_RESPONSE", "content": "It is noon."}),
    ReActAgent: json.dumps(
        {
            "primary_action": {
                "response_purpose": "DIRECT_RESPONSE",
                "response_content": {"message": "It is noon."},
            }
        }
    ),
}


def main() -> None:
    message = Message(session_id="s", sender=Sender("ada"), parts="What time is it?")
    view = TurnView(message=message, record=[message], state={}, profile=Profile(name="clock"))
    for kind, text in TEXTS.items():
        protocol = kind("clock", llm=ScriptedLLM([])).protocol
        [outcome] = protocol.read(ModelResponse(parts=(Text(text),)), view)
        assert isinstance(outcome, SendReply), outcome
        assert outcome.text == "It is noon."


main()
