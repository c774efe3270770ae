"""Cuts a conversation to a size: old tool results are shortened first, then the oldest rounds of calls are left out.

The messages that the running turn answers always stay, and so does the last round. The newest results of the running turn stay
whole as long as anything else can be cut.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence

import attrs

from actgent.errors.printable import counted
from actgent.messages import ChatMessage, Part, Text, ToolCall, ToolResult

KEPT_RESULTS = 5
"""Newest results of the running turn that are shortened only if nothing else can be cut."""
SHORT_CHARACTERS = 1_000
"""Characters that are left of a shortened result."""
TEXT_RESULTS = "Tool results:"
"""Beginning of a message with results of calls that stood in text."""
_NOTICE = re.compile(r"\n\[the first \d+ of (\d+) characters([^\[\]\n]*)\]\Z")
_PLAIN_ID = re.compile(r"[\w.:/-]{1,100}", re.ASCII)
_WORTH = 0.01
"""Share of the conversation that a cut has to free, or it does not change anything."""

Measure = Callable[[Sequence[Part]], float]
"""Returns the size of some parts, in a unit of the caller."""


@attrs.frozen
class Cut:
    """A conversation after a cut."""

    chat: list[ChatMessage]
    """The messages that are left, oldest first."""
    left_out: int
    """Number of messages that are not in `chat` any more; the caller shows the pinned ones of them in front."""
    replaced: dict[int, ChatMessage]
    """Shortened messages, by the identity of the message that each replaces."""


@attrs.frozen(eq=False)
class _Result:
    """One tool result that can be shortened."""

    place: int
    """Place of its message."""
    part: int
    """Place in its message."""
    size: float
    least: float
    """Size of the result if it is shortened to `SHORT_CHARACTERS`."""
    characters: int

    def limit(self, size: float) -> int:
        """Return the characters that fit into a size between `least` and `size`."""
        return SHORT_CHARACTERS + int((size - self.least) / self.size * self.characters)


def begins(chat: Sequence[ChatMessage], place: int) -> bool:
    """Return True for a message that stands by itself, so that all messages before it can be left out."""
    message = chat[place]
    if not place:
        return True
    if message.role == "tool" or any(isinstance(part, ToolCall) for part in chat[place - 1].parts):
        return False
    return not _has_text_results(message)


def cut(
    chat: Sequence[ChatMessage],
    wanted: float,
    measure: Measure,
    *,
    pinned: Collection[int],
    task: Collection[int],
    is_deep: bool = False,
    is_last_fixed: bool = True,
) -> Cut | None:
    """Cut a conversation to about `wanted`, in the unit of `measure`; return None if nothing worth it can be cut.

    `pinned` are the identities of messages that have to be shown; those of `task` among them began the running turn.
    The newest `KEPT_RESULTS` results of the running turn and their calls stay as they are, unless `is_deep`: then these results
    are shortened, oldest first, so that the conversation fits into `wanted`. `is_last_fixed` excepts the last round.
    """
    if not chat:
        return None
    return _Cutter(chat, wanted, measure, pinned, task).cut(is_deep=is_deep, is_last_fixed=is_last_fixed)


class _Cutter:
    """One cut of one conversation."""

    def __init__(
        self,
        chat: Sequence[ChatMessage],
        wanted: float,
        measure: Measure,
        pinned: Collection[int],
        task: Collection[int],
    ) -> None:
        self._chat = chat
        self._wanted = wanted
        self._measure = measure
        self._sizes = [measure(said.parts) for said in chat]
        starts = [place for place in range(len(chat)) if begins(chat, place)]
        self._rounds = list(zip(starts, [*starts[1:], len(chat)], strict=True))
        begun = max((place for place, said in enumerate(chat) if id(said) in task), default=-1)
        self._results = list(self._find_results())
        own = [each for each in self._results if each.place > begun]
        self._kept = own[:KEPT_RESULTS]
        """The newest results of the running turn, newest first."""
        oldest = self._kept[-1].place if self._kept else len(chat)
        self._droppable = [
            (start, end)
            for start, end in self._rounds[:-1]
            if end <= oldest and not any(id(said) in pinned for said in chat[start:end])
        ]

    def cut(self, *, is_deep: bool, is_last_fixed: bool) -> Cut | None:
        before, last = sum(self._sizes), self._rounds[-1][0]
        kept = [each for each in self._results if each in self._kept or each.place >= last]
        older = [each for each in self._results if each not in kept]
        total = before - sum(each.size - each.least for each in older)
        dropped, total = self._drop(total, older)
        shortened = [each for each in older if each.place >= dropped]
        if is_deep:
            for each in reversed(kept):
                if total <= self._wanted or (is_last_fixed and each.place >= last):
                    break
                shortened.insert(0, each)
                total -= each.size - each.least
        sizes = []
        for each in shortened:  # the newest get back what is left of the room
            given = max(0.0, min(self._wanted - total, each.size - each.least))
            sizes.append(each.least + given)
            total += given
        if before - total < before * _WORTH:
            return None
        return self._made(dropped, list(zip(shortened, sizes, strict=True)))

    def _find_results(self) -> Iterator[_Result]:
        """Find all tool results, newest first."""
        for place in reversed(range(len(self._chat))):
            said = self._chat[place]
            if said.role != "tool" and not _has_text_results(said):
                continue
            for number in reversed(range(len(said.parts))):
                part = said.parts[number]
                if isinstance(part, ToolResult | Text):
                    size, short = self._measure((part,)), shorten(part, SHORT_CHARACTERS)
                    least = size if short is part else min(size, self._measure((short,)))
                    yield _Result(place, number, size, least, _length(part))

    def _drop(self, total: float, older: Sequence[_Result]) -> tuple[int, float]:
        """Leave out the oldest rounds until the rest fits; return where the last of them ends, and the size of the rest."""
        sizes, end = [*self._sizes], 0
        for each in older:
            sizes[each.place] -= each.size - each.least
        for start, after in self._droppable:
            if total <= self._wanted:
                break
            total -= sum(sizes[start:after])
            end = after
        return end, total

    def _made(self, first: int, shortened: Sequence[tuple[_Result, float]]) -> Cut:
        """Put the conversation together that is left; `first` is the place where it begins, but for pinned messages."""
        parts: dict[int, list[Part]] = {}
        for each, size in shortened:
            if size < each.size:
                changed = parts.setdefault(each.place, [*self._chat[each.place].parts])
                changed[each.part] = shorten(changed[each.part], each.limit(size))
        replaced = {
            id(self._chat[place]): attrs.evolve(self._chat[place], parts=tuple(changed))
            for place, changed in parts.items()
        }
        chat = [replaced.get(id(said), said) for said in self._chat[first:]]
        return Cut(chat, first, replaced)


def shorten(part: Part, limit: int) -> Part:
    """Return a result with at most about `limit` characters and without pictures and files; a shorter one as it is.

    A notice at its end says how long the result was, and its id, by which `read_result` finds it in the record.
    """
    if isinstance(part, Text):
        text = _beginning(part.text, limit, "")
        return part if text is part.text else attrs.evolve(part, text=text)
    if not isinstance(part, ToolResult):
        return part
    known = f' of result "{part.call_id}"' if _PLAIN_ID.fullmatch(part.call_id) else ""
    error = None if part.error is None else _beginning(part.error, limit, known)
    content = _beginning(part.content, limit - len(error or ""), known)
    if part.media:
        content += f"\n[{counted(len(part.media), 'file is', 'files are')} not shown any more]"
    if content is part.content and error is part.error:
        return part
    return attrs.evolve(part, content=content, error=error, media=())


def _beginning(text: str, limit: int, known: str) -> str:
    """Return the beginning of a text, and a notice of how long it was; also of a text that was shortened before."""
    if len(text) <= max(limit, 0):
        return text
    body, total, rest = text, str(len(text)), known
    if found := _NOTICE.search(text):
        body, (total, rest) = text[: found.start()], found.groups()
    notice = f"of {total} characters{rest}]"
    shown = min(len(body), max(0, limit - len(notice) - len(f"\n[the first {limit} ")))
    return f"{body[:shown]}\n[the first {shown} {notice}"


def _length(part: Part) -> int:
    if isinstance(part, ToolResult):
        return len(part.content) + len(part.error or "")
    return len(part.text) if isinstance(part, Text) else 0


def _has_text_results(message: ChatMessage) -> bool:
    """Return True for a message with results of calls that stood in text."""
    return isinstance(text := message.parts[0], Text) and text.text.startswith(TEXT_RESULTS)
