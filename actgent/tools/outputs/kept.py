"""Results too long for the model: kept once in the session's state, and read in pieces by `read_result`.

The state is durable if the session has a journal. The conversation holds only the beginning of a result. Results that memory
has shortened later are read from the session's record.
"""

from collections.abc import Mapping
from typing import Any

from actgent.errors import ToolError
from actgent.messages import ToolCall
from actgent.tools.base import Effect, HasState, Tool, ToolContext, innermost
from actgent.tools.registry import READ_RESULT, ToolRegistry

from .results import capped

LONGEST_PIECE = 20_000
FOUND = 20
"""How many places one search tells."""
_AROUND = 150
"""Characters that are told on each side of what was found."""
_KEY = "_result/"
_SIZE = "_results"


class ReadResult(Tool):
    """Reads more of a result of which the model was shown the beginning; agents with tools have it by themselves."""

    name = READ_RESULT
    description = (
        "Read on in a long result of which you were shown the beginning only, or search it for a text."
    )
    effect: Effect = "pure"
    inline = True
    outside = True  # it may be what strangers wrote
    in_every_mode = True
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "The id of the result."},
            "start": {"type": "integer", "minimum": 0, "description": "The first character; 0 by default."},
            "length": {"type": "integer", "minimum": 1, "maximum": LONGEST_PIECE},
            "search": {"type": "string", "minLength": 1, "description": "A text to look for from start on."},
        },
        "required": ["id"],
        "additionalProperties": False,
    }

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        state = context.state
        text = None if state is None else state.get(f"{_KEY}{arguments['id']}")
        if not isinstance(text, str):
            text = await _recorded_text(context.session, arguments["id"])
        if not text:
            raise ToolError(
                f"the session has no text result with the id {arguments['id'][:80]!r}: use the id at the end of a shortened "
                "result; pictures and files are never shortened"
            )
        start = arguments.get("start", 0)
        if "search" in arguments:
            return _found(text, arguments["search"], start)
        piece = text[start : start + arguments.get("length", LONGEST_PIECE // 2)]
        return f"[characters {start} to {start + len(piece)} of {len(text)}]\n{piece}"


def offer_read_result(registry: ToolRegistry) -> None:
    """Add `read_result` behind the tools of an agent that has any, unless one of that name is there."""
    has_tools = registry.has_toolsets or bool(registry.specs())
    if has_tools and registry.get(ReadResult.name) is None:
        registry.add(ReadResult(), last=True)


def can_read_results(registry: ToolRegistry) -> bool:
    """Return True if `read_result` is among the tools, and no other one of that name."""
    tool = registry.get(ReadResult.name)
    return tool is not None and isinstance(innermost(tool), ReadResult)


def keep_result(source: HasState, call: ToolCall, text: str, limit: int, *, most: int) -> str:
    """Keep a result that is longer than `limit`; returns its beginning, with where the rest is to be read.

    `most` are the characters that a session keeps in its whole life; what comes after that is cut.
    """
    if not keep_text(source.state, call.id, text, most=most):
        return capped(text, limit)
    rest = f'of {len(text)} characters; read_result with id "{call.id}" reads on, and searches]'
    shown = max(0, limit - len(rest) - len(f"\n[the first {limit} "))
    return f"{text[:shown]}\n[the first {shown} {rest}"


def keep_text(state: Any, name: str, text: str, *, most: int) -> bool:
    """Keep a text for `read_result` under an id; False if the session has kept too much already."""
    size = state.get(_SIZE, 0) + len(text)
    if size > most:
        return False
    # Once: a call that is repeated after a crash may have come as far as here before it.
    state.dispatch([(f"{_KEY}{name}", text), (_SIZE, size)], once=f"{name}/kept")
    return True


def kept_text(state: Mapping[str, Any], name: str) -> str | None:
    """The text that is kept under an id; None if there is none."""
    text = state.get(f"{_KEY}{name}")
    return text if isinstance(text, str) else None


async def _recorded_text(session: Any, call_id: str) -> str | None:
    """Return the result of a call from the record of a session, which has it whole; None if there is no such call."""
    before: int | None = None
    while session is not None and before != 0:
        page = await session.messages(before=before)
        for message in reversed(page.messages):
            for result in message.tool_results:
                if result.call_id == call_id:
                    return "\n".join(filter(None, (result.error, result.content)))
        before = page.first
    return None


def _found(text: str, wanted: str, start: int) -> str:
    """The places of a text, with what stands round them."""
    places: list[int] = []
    while len(places) < FOUND and (place := text.find(wanted, start)) >= 0:
        places.append(place)
        start = place + len(wanted)
    if not places:
        return f"{wanted[:200]!r} is not there"
    told = (
        f"[at {place}] {text[max(0, place - _AROUND) : place + len(wanted) + _AROUND]}" for place in places
    )
    more = "\n[there may be more: search on from behind the last]" if len(places) == FOUND else ""
    return "\n".join(told) + more
