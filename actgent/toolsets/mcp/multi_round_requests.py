"""Requests in several rounds (MCP revision 2026-07-28).

A server that needs input answers a request with its own requests and an opaque state. The client sends the request
again with the responses and that state. Nothing is open between two rounds, so a round can wait for an approver in the
journal.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import attrs
import mcp_types
from pydantic import TypeAdapter, ValidationError

from actgent.errors import ToolError

MAX_ROUNDS = 10
"""Maximum number of times that a server may ask for input for one request."""
MAX_STATE_CHARACTERS = 200_000
"""Maximum length of the state of a round that is kept in the journal."""
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_Requests: TypeAdapter[dict[str, mcp_types.InputRequest]] = TypeAdapter(dict[str, mcp_types.InputRequest])
_Responses: TypeAdapter[dict[str, mcp_types.InputResponse]] = TypeAdapter(dict[str, mcp_types.InputResponse])
RoundResponder = Callable[[mcp_types.InputRequest, "Round"], Awaitable[mcp_types.InputResponse]]
"""Function that answers a request of the server during a round."""


class RoundRequest(Protocol[T_co]):
    """Function that sends the request with the responses and the state of a round, and returns the server's reply."""

    def __call__(
        self, *, input_responses: dict[str, mcp_types.InputResponse] | None, request_state: str | None
    ) -> Awaitable[T_co | mcp_types.InputRequiredResult]: ...


@attrs.define(eq=False)
class Round:
    """State of a request between two rounds: the server's requests for input, and the responses to them."""

    number: int = 0
    """Number of rounds that the server has asked for so far."""
    state: str | None = None
    """State of the server, sent back unchanged; None if the server sent none."""
    requests: dict[str, mcp_types.InputRequest] = attrs.field(factory=dict)
    """Requests of the server that have no response yet, by their id."""
    responses: dict[str, mcp_types.InputResponse] = attrs.field(factory=dict)
    """Responses to the server's other requests, by the id of the request."""

    @classmethod
    def parse(cls, text: str) -> "Round":
        """Restore the state of a request from the text that `dump` wrote. An empty text gives the state of a new request.

        Raises:
            ToolError: The text is not an encoded round.
        """
        if not text:
            return cls()
        try:
            known = json.loads(text)
            return cls(
                int(known["number"]),
                known["state"],
                _Requests.validate_python(known["requests"]),
                _Responses.validate_python(known["responses"]),
            )
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            raise ToolError(
                "the stored state of the MCP server's question cannot be read: call the tool again"
            ) from error

    def dump(self) -> str:
        """Encode the state of a request as text for the journal, so that the request can resume after an approver's answer.

        Raises:
            ToolError: The text is too long.
        """
        known = {
            "number": self.number,
            "state": self.state,
            "requests": _to_plain_models(self.requests),
            "responses": _to_plain_models(self.responses),
        }
        text = json.dumps(known, separators=(",", ":"))
        if len(text) > MAX_STATE_CHARACTERS:
            raise ToolError(
                f"the question of the MCP server cannot be answered: the state that the server sent with it has more than {MAX_STATE_CHARACTERS:,} characters"
            )
        return text


async def run_rounds(ask: RoundRequest[T], respond: RoundResponder, current: Round) -> T:
    """Send a request until the server returns its result, and answer the server's requests in between.

    Raises:
        ToolError: The server asks for input in more than `MAX_ROUNDS` rounds.
    """
    while True:
        for key, request in list(current.requests.items()):
            current.responses[key] = await respond(request, current)
            del current.requests[key]
        result = await ask(input_responses=current.responses or None, request_state=current.state)
        if not isinstance(result, mcp_types.InputRequiredResult):
            return result
        if current.number == MAX_ROUNDS:
            raise ToolError(f"the MCP server asked for input more than {MAX_ROUNDS} times")
        current = Round(current.number + 1, result.request_state, dict(result.input_requests or {}))


def _to_plain_models(models: dict[str, Any]) -> dict[str, Any]:
    return {
        key: model.model_dump(by_alias=True, mode="json", exclude_none=True) for key, model in models.items()
    }
