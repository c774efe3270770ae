"""Assembly of a streamed chat completion: its chunks become the body of a complete one.

Servers that call themselves compatible number, name and cut the pieces of a tool call in many ways. `CallAssembler`
assigns each piece to its call; a call that cannot be assembled keeps its text, which is an error to the model.
Source: https://platform.openai.com/docs/api-reference/chat-streaming
"""

import re
from collections.abc import Mapping
from typing import Any

import attrs

from actgent.llm.http.base_provider_client import StreamAssembler
from actgent.llm.http.wire_encoding import Body, read_arguments, to_json

_APPENDED_LISTS = frozenset({"thinking", "text"})
"""Types of list items that arrive in pieces without an index (Mistral's thinking, LiteLLM's thinking blocks)."""
_WHOLE = frozenset({"id", "index", "type", "name", "format", "signature"})
"""Text fields that are replaced and never appended to, because some servers repeat them in each chunk."""


class CompletionAssembler(StreamAssembler):
    """Assembles the chunks of a streamed chat completion into one response body. Choices other than choice 0 are ignored."""

    def __init__(self) -> None:
        self._body: Body = {}
        self._choice: Body = {"index": 0}
        self._message: Body = {}
        self._content = ContentParts()
        self._calls = CallAssembler()
        self._has_deltas = False

    def feed(self, event: Body) -> str:
        for key in ("id", "model", "x_groq"):
            if event.get(key):
                self._body[key] = event[key]
        if usage := event.get("usage"):
            self._add_usage(usage)
        text = ""
        for choice in event.get("choices") or ():
            if (choice.get("index") or 0) == 0:
                text += self._take(choice)
        return text

    def _take(self, choice: Body) -> str:
        for key in ("finish_reason", "error"):
            if choice.get(key):
                self._choice[key] = choice[key]
                self.complete = True
        if usage := choice.get("usage"):  # Moonshot
            self._add_usage(usage)
        if delta := choice.get("delta") or {}:
            self._has_deltas = True
        elif message := choice.get("message"):
            delta = self._missing_fields(message)
        self._add_delta(delta)
        if isinstance(text := choice.get("text"), str):  # a server with the text completions format
            self._content.feed(text)
        return delta_text(delta.get("content")) + delta_text(delta.get("refusal")) + delta_text(text)

    def _add_delta(self, delta: Body) -> None:
        for key, value in delta.items():
            if key == "content":
                self._content.feed(value)
            elif key == "tool_calls":
                for piece in value or ():
                    self._calls.feed(piece)
            elif value and key == "function_call":
                self._calls.feed({"index": "function_call", "function": value})
            elif value and key != "role":
                append_piece(self._message, key, value)

    def _add_usage(self, usage: object) -> None:
        """Add the counts of an event to the usage. Counts are totals, and some servers send zeros in their last event."""
        if isinstance(usage, Mapping):
            known = {key: value for key, value in usage.items() if value}
            self._body["usage"] = {**self._body.get("usage", {}), **known}

    def _missing_fields(self, message: Body) -> Body:
        """Return the fields of `message` that earlier chunks of the stream did not contain.

        `message` is the field that some servers send in place of `delta`. After deltas, it repeats the whole answer
        (MiniMax). Without deltas, each message is a piece of the answer, and all of its fields are returned.
        """
        if not self._has_deltas:
            return message
        received = set(self._message)
        received |= {"content"} if self._content.read() else set()
        received |= {"tool_calls", "function_call"} if self._calls.read() else set()
        return {key: value for key, value in message.items() if key not in received}

    def body(self) -> Body | None:
        if not self.complete:
            return None
        message = {
            **join_pieces(self._message),
            "content": self._content.read(),
            "tool_calls": self._calls.read(),
        }
        return {**self._body, "choices": [{**self._choice, "message": message}]}


# --- content ------------------------------------------------------------------------------------


class ContentParts:
    """Assembles the streamed content of a message: strings and lists of parts in any order.

    Text is appended to the last text part.
    """

    def __init__(self) -> None:
        self._parts: list[Body] = []

    def feed(self, content: object) -> None:
        """Append the content of one stream delta, which is a text or a list of content parts."""
        if isinstance(content, str):
            if not content:
                return
            text = self._parts[-1].get("text") if self._parts else None
            if isinstance(text, _Pieces):  # the usual case
                text.append(content)
            else:
                _grow_item(self._parts, {"type": "text", "text": content})
        elif isinstance(content, list):
            for item in content:
                _grow_item(self._parts, {"type": "text", "text": item} if isinstance(item, str) else item)
        elif content:
            _grow_item(self._parts, content)

    def read(self) -> str | list[Body] | None:
        """Return the received content: one string if all parts are text, otherwise the list of parts; None without content."""
        if not self._parts:
            return None
        if all(part.keys() <= {"type", "text"} for part in self._parts):
            return "".join(join_pieces(part.get("text") or "") for part in self._parts)
        parts: list[Body] = join_pieces(self._parts)
        return parts


def delta_text(content: object) -> str:
    """Return the text in the content of a stream delta, to pass to `on_text`. Parts of other kinds are left out."""
    if isinstance(content, list):
        return "".join(map(_item_text, content))
    return content if isinstance(content, str) else ""


def _item_text(item: Any) -> str:
    text = item if isinstance(item, str) else item.get("text")
    return text if isinstance(text, str) else ""


# --- tool calls ---------------------------------------------------------------------------------


_MARKS = re.compile(r'["\\{}\[\]]')
_MAX_VALUES = 8
"""Maximum number of consecutive JSON values in the arguments of one call, the same as in `read_arguments`."""


@attrs.define(eq=False)
class _CompletenessScanner:
    """Tracks whether streamed JSON text may be complete.

    Each character is scanned once. Parsing all pieces after each new one would take quadratic time.
    """

    _scanned: int = 0
    _depth: int = 0
    _in_string: bool = False
    _is_escaped: bool = False
    _values: int = 0

    @property
    def may_be_whole(self) -> bool:
        return not self._in_string and self._depth == 0 and 0 < self._values <= _MAX_VALUES

    def scan(self, pieces: list[str]) -> None:
        """Scan the new pieces of a tool call's arguments, and count the complete JSON values among them."""
        for number in range(self._scanned, len(pieces)):
            text, index = pieces[number], 0
            if self._is_escaped and text:
                self._is_escaped, index = False, 1
            while found := _MARKS.search(text, index):
                index = found.end()
                mark = found[0]
                if mark == "\\":
                    self._is_escaped = self._in_string and index == len(text)
                    index += self._in_string
                elif mark == '"':
                    self._in_string = not self._in_string
                elif not self._in_string:
                    self._depth += 1 if mark in "{[" else -1
                    self._values += self._depth == 0
        self._scanned = len(pieces)


@attrs.define(eq=False)
class _Call:
    id: str = ""
    name: str = ""
    kind: str = "function"
    pieces: list[str] = attrs.field(factory=list)
    """Received pieces of the arguments, or of a custom tool's input."""
    fields: Body = attrs.field(factory=dict)
    """Fields of the streamed tool call that the API does not define."""
    function_fields: Body = attrs.field(factory=dict)
    """Fields of the function in the streamed tool call that the API does not define."""
    _read: tuple[int, Mapping[str, Any] | None] = (0, None)
    """Cached result of parsing: the number of parsed pieces, and the arguments in them (None if incomplete)."""
    _ends: _CompletenessScanner = attrs.field(factory=_CompletenessScanner)

    def has_complete_arguments(self) -> bool:
        """Return True if the received arguments are a complete JSON object."""
        return self._arguments() is not None

    def has_nonempty_arguments(self) -> bool:
        """Return True if the received arguments are a complete JSON object that is not empty."""
        return bool(self._arguments())

    def differs(self, text: str) -> bool:
        """Return True if a text contains the complete arguments of another call, i.e. a JSON object with other values."""
        other = read_arguments(text) if text.lstrip().startswith("{") else None
        return isinstance(other, Mapping) and repr(other) != repr(self._arguments())

    def _arguments(self) -> Mapping[str, Any] | None:
        self._ends.scan(self.pieces)
        if not self._ends.may_be_whole:
            return None
        if self._read[0] != len(self.pieces):
            found = read_arguments("".join(self.pieces))
            self._read = len(self.pieces), found if isinstance(found, Mapping) else None
        return self._read[1]

    def read(self) -> Body:
        text = "".join(self.pieces)
        inner = {"name": self.name, ("input" if self.kind == "custom" else "arguments"): text}
        return {**self.fields, "id": self.id, self.kind: {**self.function_fields, **inner}}


class CallAssembler:
    """Assigns the pieces of streamed tool calls to their calls.

    1. The index decides; without an index the id does, and without both the piece belongs to the last call.
    2. Only a piece with a name starts a call. A different id alone does not: some servers send a new id with each piece.
    3. Servers that number every call 0 start the next one with a name after the arguments have become an object.
    4. Pieces of a name are joined, unless they repeat the name.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[Any, _Call] = {}
        self._by_id: dict[str, _Call] = {}

    def feed(self, piece: Body) -> None:
        """Add an item of a stream delta's `tool_calls` to the tool call that the item continues, or start a new tool call."""
        kind = "custom" if piece.get("custom") else "function"
        inner: Body = piece.get(kind) or {}
        name, text = inner.get("name") or "", inner.get("input" if kind == "custom" else "arguments")
        if not isinstance(text, str):
            text = "" if text is None else to_json(text).decode()
        call = self._call_of(piece, name, text)
        call.kind = kind if name else call.kind
        if name != call.name:
            call.name += name
        if text:
            call.pieces.append(text)
        _merge(call.fields, piece, without=("index", "id", "type", "function", "custom"))
        _merge(call.function_fields, inner, without=("name", "arguments", "input"))

    def read(self) -> list[Body]:
        """Return the assembled tool calls in the format of a response without streaming.

        A repetition of the last call is dropped.
        """
        last = self._calls[-1:]
        if last and self._is_repetition(last[0]):
            return [call.read() for call in self._calls[:-1]]
        return [call.read() for call in self._calls]

    def _call_of(self, piece: Body, name: str, text: str) -> _Call:
        index, call_id = piece.get("index"), piece.get("id") or ""
        known = self._by_index.get(index) if index is not None else self._unnumbered(call_id)
        if known is None and not name:
            known = self._by_id.get(call_id) or self._find_unfinished_call(call_id, text)
        if known is None or (name and _starts_new_call(known, call_id, name, text)):
            known = _Call()
            self._calls.append(known)
        self._by_index.setdefault(index, known)
        if name:
            self._by_index[index] = known
        if call_id and not known.id:
            known.id = call_id
            self._by_id.setdefault(call_id, known)
        return known

    def _unnumbered(self, call_id: str) -> _Call | None:
        if call_id:
            return self._by_id.get(call_id)
        return self._calls[-1] if self._calls else None

    def _find_unfinished_call(self, call_id: str, text: str) -> _Call | None:
        """Return the last started call if a piece without a usable name, index and id continues this call; else None."""
        last = self._calls[-1] if self._calls else None
        if last is None or (text and last.has_nonempty_arguments()) or (call_id and not text):
            return None
        return last

    def _is_repetition(self, call: _Call) -> bool:
        """Return True if a call only repeats the name of the previous call: it has neither id nor arguments."""
        before = self._calls[-2] if len(self._calls) > 1 else None
        return before is not None and before.name == call.name and not call.id and not call.pieces


def _starts_new_call(call: _Call, call_id: str, name: str, text: str) -> bool:
    """Return True if a piece with a name starts a new call instead of continuing `call`.

    The piece has the index of `call` or no index. `text` is its piece of the arguments.
    """
    if not call.name:
        return False
    if call_id and call.id == call_id:  # servers that derive the id of a call from its name
        return call.has_nonempty_arguments() and call.differs(text)
    if call_id and call.id:
        return name != call.name or call.has_complete_arguments()
    if not call.pieces:
        return False  # a fragment or a repetition of the tool name, not a new call
    if (not text or text.lstrip().startswith("{")) and call.has_complete_arguments():
        return True
    return name != call.name and not call.has_complete_arguments()


def _merge(target: Body, piece: Mapping[str, Any], *, without: tuple[str, ...] = ()) -> None:
    """Merge the fields of a streamed piece into `target`.

    Nested objects are merged; other values are replaced. None values and fields in `without` are skipped.
    """
    for key, value in piece.items():
        if key in without or value is None:
            continue
        if isinstance(value, Mapping) and isinstance(known := target.get(key), dict):
            _merge(known, value)
        else:
            target[key] = dict(value) if isinstance(value, Mapping) else value


# --- streamed fields ------------------------------------------------------------------------------


class _Pieces(list[str]):
    """Pieces of a streamed text. Appending to a str in a dict would copy the text each time."""


def append_piece(target: Body, key: str, value: Any) -> None:
    """Add a streamed piece of a field to `target`: text is appended, objects and lists are extended, other values are replaced."""
    known = target.get(key)
    if isinstance(value, str) and key not in _WHOLE:
        if isinstance(known, _Pieces):
            known.append(value)
        else:
            target[key] = _Pieces([value])
    elif isinstance(value, dict):
        if key == "extra_content":  # signatures, which are repeated and never split
            _merge(target.setdefault(key, {}), value)
        else:
            for inner, piece in value.items():
                append_piece(target.setdefault(key, {}), inner, piece)
    elif isinstance(value, list):
        for item in value:
            _grow_item(target.setdefault(key, []), item)
    else:
        target[key] = value


def _grow_item(known: list[Any], item: Any) -> None:
    if not isinstance(item, dict):
        known.append(item)
        return
    if not known or not isinstance(known[-1], dict) or not _continues(known[-1], item):
        known.append({})
    for inner, piece in item.items():
        append_piece(known[-1], inner, piece)


def _continues(last: Body, item: Body) -> bool:
    """Return True if a streamed list item is the next piece of the last item of the list."""
    if "index" in item:
        return (last.get("index"), last.get("type")) == (item["index"], item.get("type"))
    is_piece = item.get("type") in _APPENDED_LISTS and last.get("type") == item.get("type")
    return is_piece and "index" not in last and not last.get("signature")


def join_pieces(value: Any) -> Any:
    """Return a copy of an assembled value in which the pieces of each text are joined."""
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return {key: join_pieces(inner) for key, inner in value.items()}
    return [join_pieces(inner) for inner in value] if isinstance(value, list) else value
