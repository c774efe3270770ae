"""Endpoints of dead letters: messages that no agent or actor processed. They are in memory, so they end with the process."""

from actgent.actors.dead_letters import DeadLetter
from actgent.errors.text_escaping import quoted, shown
from actgent.messages import Message, Sender
from actgent.web import json_response_types
from actgent.web.problem_documents import missing

from .endpoints import JSON, Endpoint, HTTPCall
from .json_serializers import to_date

MAX_TEXT_CHARS = 4000
"""Length to which the text of a message is cut, in characters."""


async def get_dead_letters(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.DeadLetterDocument]]:
    """List the dead letters in memory, the newest first."""
    letters = reversed(call.gateway.access.runtime.dead_letters)
    return JSON({"items": [_of_letter(letter) for letter in letters], "next": None})


async def send_dead_letter(call: HTTPCall) -> JSON[json_response_types.DeadLetterDocument]:
    """Send a dead letter to its agent or actor again. The letter is removed from the list after the message was accepted."""
    runtime = call.gateway.access.runtime
    letter = next((each for each in runtime.dead_letters if each.id == call.path["l"]), None)
    if letter is None:
        raise missing()
    await runtime.send_again(letter)
    return JSON(_of_letter(letter), status_code=202)


def _of_letter(letter: DeadLetter) -> json_response_types.DeadLetterDocument:
    payload = letter.payload
    is_message = isinstance(payload, Message)
    owner = letter.owner
    return {
        "id": letter.id,
        "actor": letter.actor,
        "session_id": payload.session_id if is_message else None,
        "owner": owner.name if isinstance(owner, Sender) else None,
        "text": shown(payload.text, MAX_TEXT_CHARS) if is_message else quoted(payload, MAX_TEXT_CHARS),
        "reason": shown(letter.reason, MAX_TEXT_CHARS),
        "error": "" if letter.error is None else type(letter.error).__name__,
        "at": to_date(letter.at),
    }


ENDPOINTS = (
    Endpoint(verb="GET", path="/dead-letters", answer=get_dead_letters, scope="admin"),
    Endpoint(
        verb="POST",
        path="/dead-letters/{l}/redelivery",
        answer=send_dead_letter,
        scope="admin",
        statuses=(202,),
    ),
)
