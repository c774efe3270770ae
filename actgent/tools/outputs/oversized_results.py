"""Storage of results that exceed the model's limit, in the session state. The model reads them with `read_result`.

The conversation contains only the beginning of such a result. The state is durable if the session has a journal. A
result that memory truncated later is read from the session record.
"""

from collections.abc import Mapping
from typing import Any

from actgent.errors import ToolError
from actgent.messages import ToolCall
from actgent.tools.tool_interface import Effect, StateSource, Tool, ToolContext, unwrap_tool
from actgent.tools.tool_registry import READ_RESULT, ToolRegistry

from .result_text import truncate

MAX_PIECE_CHARACTERS = 20_000
"""Maximum number of characters that one call of `read_result` returns."""
MAX_SEARCH_HITS = 20
"""Maximum number of search hits that one call returns."""
_CONTEXT_CHARACTERS = 150
"""Characters shown before and after each search hit."""
_KEY_PREFIX, _MOVED_PREFIX = "_result/", "_moved/"
_TOTAL_KEY = "_results"


class ReadResult(Tool):
    """The `read_result` tool: reads or searches a stored result of which the model has only the beginning.

    All agents with tools have this tool.
    """

    name = READ_RESULT
    description = "Read more of a long result that was shortened, or search it for a text."
    effect: Effect = "pure"
    # Not `inline`: a search in the messages of a long session reads the journal, and has to respect the tool's time limit.
    outside = True  # the stored result may be untrusted
    in_every_mode = True
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "The id of the result."},
            "start": {"type": "integer", "minimum": 0, "description": "The first character; 0 by default."},
            "length": {"type": "integer", "minimum": 1, "maximum": MAX_PIECE_CHARACTERS},
            "search": {
                "type": "string",
                "minLength": 1,
                "description": "A text to search for, beginning at start.",
            },
        },
        "required": ["id"],
        "additionalProperties": False,
    }

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        values = {} if context.state is None else context.state.shared_values
        name = arguments["id"]
        text = values.get(f"{_KEY_PREFIX}{name}", values.get(f"{_MOVED_PREFIX}{name}"))
        if text is None:
            text = await _text_from_record(context.session, arguments["id"])
        if not text:
            raise ToolError(
                f"the session has no text result with the id {arguments['id'][:80]!r}: use the id at the end of a shortened "
                "result; pictures and files are never shortened"
            )
        start = arguments.get("start", 0)
        if "search" in arguments:
            return _search(text, arguments["search"], start)
        piece = text[start : start + arguments.get("length", MAX_PIECE_CHARACTERS // 2)]
        return f"[characters {start} to {start + len(piece)} of {len(text)}]\n{piece}"


_READ_RESULT = ReadResult()
"""The tool `read_result`, shared by all agents. Its schema is constant, and each new object would compile it again."""


def offer_read_result(registry: ToolRegistry) -> None:
    """Add the tool `read_result` to a registry, as the last tool.

    A registry without tools, or with a tool of that name, stays unchanged.
    """
    has_tools = registry.has_toolsets or bool(registry.specs)
    if has_tools and registry.get(ReadResult.name) is None:
        registry.add_last(_READ_RESULT)


def has_read_result(registry: ToolRegistry) -> bool:
    """Return True if a registry has the built-in tool `read_result`, not another tool of that name."""
    tool = registry.get(ReadResult.name)
    return tool is not None and isinstance(unwrap_tool(tool), ReadResult)


def store_oversized(source: StateSource, call: ToolCall, text: str, limit: int, *, session_limit: int) -> str:
    """Store a result with more than `limit` characters. Return its beginning, and a note with the id for `read_result`.

    Args:
        source: Session whose state stores the text.
        call: The call that returned the result; its id is the key.
        text: The whole result.
        limit: Maximum length of the returned text, in characters.
        session_limit: Maximum number of characters that the session stores in total. Above it, the result is only truncated.
    """
    if not store_text(source.state, call.id, text, session_limit=session_limit):
        return truncate(text, limit)
    rest = f'of {len(text)} characters; read_result with id "{call.id}" reads on, and searches]'
    shown = max(0, limit - len(rest) - len(f"\n[the first {limit} "))
    return f"{text[:shown]}\n[the first {shown} {rest}"


def store_text(state: Any, name: str, text: str, *, session_limit: int) -> bool:
    """Store a text in the session state for `read_result`, with the id `name`.

    The state hides the text from tools and prompts, because the text may be untrusted.

    Return False, without storing it, if the stored texts would exceed `session_limit` characters.
    """
    return _store(state, f"{_KEY_PREFIX}{name}", text, once=f"{name}/kept", session_limit=session_limit)


def move_to_results(state: Any, name: str, text: str, *, session_limit: int) -> bool:
    """Store a value that was moved out of the session state, as JSON text, with the id `name`.

    The tool `read_result` and `load_moved_text` read the text. Return False, without storing it, if the stored texts would
    exceed `session_limit` characters.
    """
    return _store(state, f"{_MOVED_PREFIX}{name}", text, once=f"{name}/kept", session_limit=session_limit)


def _store(state: Any, key: str, text: str, *, once: str, session_limit: int) -> bool:
    size = state.shared_values.get(_TOTAL_KEY, 0) + len(text)
    if size > session_limit:
        return False
    # `once`: a call that is repeated after a crash may have stored the text before.
    state.dispatch([(key, text), (_TOTAL_KEY, size)], once=once)
    return True


def load_moved_text(state: Any, name: str) -> str | None:
    """Return the text that `move_to_results` stored with the id `name`; None if the id is unknown.

    Results of tools are never returned, because a reference in the state could name an untrusted result.
    """
    text: str | None = getattr(state, "shared_values", state).get(f"{_MOVED_PREFIX}{name}")
    return text


async def _text_from_record(session: Any, call_id: str) -> str | None:
    """Return the complete result of a call from the newest message of the session that contains the result.

    Return None if no message contains the result.
    """
    before: int | None = None
    while session is not None and before != 0:
        page = await session.messages(before=before)
        for message in reversed(page.messages):
            for result in message.tool_results:
                if result.call_id == call_id:
                    return "\n".join(filter(None, (result.error, result.content)))
        before = page.first
    return None


def _search(text: str, query: str, start: int) -> str:
    """Find `query` in a text from index `start` on. Return the hits as text, each with its index and surrounding text.

    At most `MAX_SEARCH_HITS` hits are returned.
    """
    hits: list[int] = []
    while len(hits) < MAX_SEARCH_HITS and (hit := text.find(query, start)) >= 0:
        hits.append(hit)
        start = hit + len(query)
    if not hits:
        return f"{query[:200]!r} was not found"
    excerpts = (
        f"[at {hit}] {text[max(0, hit - _CONTEXT_CHARACTERS) : hit + len(query) + _CONTEXT_CHARACTERS]}"
        for hit in hits
    )
    more = (
        "\n[there may be more hits: search again with a later start]" if len(hits) == MAX_SEARCH_HITS else ""
    )
    return "\n".join(excerpts) + more
