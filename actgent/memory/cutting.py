"""Cuts a conversation to a size: old tool results are shortened first, then the oldest rounds of calls are left out.

The messages that the running turn answers always stay, and so does the last round. The newest results of the running turn stay
whole as long as anything else can be cut.
"""

import re
from collections.abc import Callable, Collection, Sequence

import attrs

from actgent.errors.printable import counted
from actgent.messages import ChatMessage, Part, Text, ToolCall, ToolResult

from .shortened import shortened

KEPT_RESULTS = 5
"""Newest results of the running turn that are shortened only if nothing else can be cut."""
DEEP_SHARE = 0.85
"""Share of a conversation that is left at least when its newest results have to be shortened: as few of them as possible."""
SHORT_CHARACTERS = 1_000
"""Characters that are left of a shortened result."""
TEXT_RESULTS = "Tool results:"
"""Beginning of a message with results of calls that stood in text."""
_NOTICE = re.compile(r"\n\[the first \d+ of (\d+) characters([^\[\]\n]*)\]\Z")
_PLAIN_ID = re.compile(r"[\w.:/-]{1,100}", re.ASCII)
_WORTH = 0.01
"""Share of the conversation that a cut has to free, or it does not change anything."""

_SPARE = 0.03
"""Share of the wanted size that may stay empty; where more is, a round that was left out is shown shortened."""

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


def begins(chat: Sequence[ChatMessage], place: int) -> bool:
    """Return True for a message that stands by itself, so that all messages before it can be left out."""
    message = chat[place]
    if not place:
        return True
    if message.role == "tool" or any(isinstance(part, ToolCall) for part in chat[place - 1].parts):
        return False
    return not _has_text_results(message)


def cut_conversation(
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
    The newest `KEPT_RESULTS` results of the running turn and their calls stay as they are, unless `is_deep`: then these calls
    and results are shortened, and at last left out, oldest first. `is_last_fixed` keeps the results of the last round whole.
    """
    if not chat:
        return None
    cutter = _Cutter(chat, wanted, measure, pinned, task)
    before = cutter.total
    cutter.shorten_old_results()
    cutter.leave_out_old_rounds()
    if is_deep:
        cutter.cut_new_rounds(is_last_fixed=is_last_fixed)
    cutter.give_back()
    is_worth_it = before - cutter.total >= before * _WORTH or cutter.total <= wanted < before
    return cutter.made() if is_worth_it else None


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
        self._whole, self._now = chat, [*chat]
        self._wanted, self._measure, self._pinned = wanted, measure, pinned
        self._sizes = [measure(said.parts) for said in chat]
        self.total = sum(self._sizes)
        """The size of what is left."""
        starts = [place for place in range(len(chat)) if begins(chat, place)]
        self._rounds = list(zip(starts, [*starts[1:], len(chat)], strict=True))
        self._last = starts[-1]
        begun = max((place for place, said in enumerate(chat) if id(said) in task), default=-1)
        self._results = [place for place in range(len(chat)) if _has_results(chat[place])]
        self._kept = self._find_kept(begun)
        """The first place of the newest results of the running turn, with their calls."""
        self._first = 0
        """The place where what is left begins, but for pinned messages."""

    def shorten_old_results(self) -> None:
        """Shorten the results before the newest ones."""
        for place in self._results:
            if place < self._kept:
                self._put(place, shorten_message(self._now[place], SHORT_CHARACTERS))

    def leave_out_old_rounds(self) -> None:
        """Leave out the oldest rounds before the newest results, until the rest fits."""
        self._leave_out(self._kept)

    def cut_new_rounds(self, *, is_last_fixed: bool) -> None:
        """Cut the newest rounds until they fit: their words first, then their results, oldest first, then all but the last."""
        new = range(self._kept, len(self._now))
        for place in new:
            if place not in self._results and not self._fits:
                self._put(place, shorten_words(self._now[place]))
        for place in self._results:
            if place in new and not (is_last_fixed and place > self._last) and not self._fits:
                self._put(place, shorten_message(self._now[place], SHORT_CHARACTERS))
        self._leave_out(self._last)

    def give_back(self) -> None:
        """Show as much of the results that were shortened as there is room for, then rounds that were left out, newest first."""
        for place in reversed(self._results):
            if place >= self._first and self._now[place] is not self._whole[place]:
                self._lengthen(place)
        for start, end in reversed(self._rounds):
            room = self._wanted - self.total
            if end > self._first:
                continue
            if room < self._wanted * _SPARE or id(self._whole[start]) in self._pinned:
                break
            said = [shorten_words(each) for each in self._now[start:end]]
            if sum(self._measure(each.parts) for each in said) > room:
                break
            self._first = start
            for place, each in enumerate(said, start):
                self.total += self._sizes[place]
                self._put(place, each)

    def made(self) -> Cut:
        """Return what is left."""
        replaced = {
            id(whole): now for whole, now in zip(self._whole, self._now, strict=True) if whole is not now
        }
        return Cut(self._now[self._first :], self._first, replaced)

    @property
    def _fits(self) -> bool:
        return self.total <= self._wanted

    def _find_kept(self, begun: int) -> int:
        """Return the place where the rounds begin that hold the newest results of the running turn; the last round at least."""
        found, first = 0, self._last
        for place in reversed(self._results):
            if place <= begun or found >= KEPT_RESULTS:
                break
            found += len(self._whole[place].parts)
            first = min(first, place)
        return max(start for start, _ in self._rounds if start <= first)

    def _put(self, place: int, said: ChatMessage) -> None:
        """Show a message in the place of another."""
        if said is not self._now[place]:
            size = self._measure(said.parts)
            self.total += size - self._sizes[place]
            self._now[place], self._sizes[place] = said, size

    def _leave_out(self, before: int) -> None:
        """Leave out the oldest rounds before a place, but for pinned messages, until the rest fits."""
        for start, end in self._rounds:
            if self._fits or end > before:
                break
            if start >= self._first and not any(id(said) in self._pinned for said in self._whole[start:end]):
                self.total -= sum(self._sizes[start:end])
                self._first = end

    def _lengthen(self, place: int) -> None:
        """Show as much of a shortened result as there is room for."""
        whole, room = self._whole[place], self._wanted - self.total
        more = self._measure(whole.parts) - self._sizes[place]
        if more <= room:
            self._put(place, whole)
        elif room > 0:
            characters = sum(max(0, _length(part) - SHORT_CHARACTERS) for part in whole.parts)
            given = int(room / more * characters) // len(whole.parts)
            self._put(place, shorten_message(whole, SHORT_CHARACTERS + given))


def shorten_words(said: ChatMessage) -> ChatMessage:
    """Return a model's answer with long words and arguments shortened; one with thoughts as it is, as providers sign those."""
    is_plain = said.role == "assistant" and all(isinstance(part, Text | ToolCall) for part in said.parts)
    return shortened(said) if is_plain else said


def shorten_message(said: ChatMessage, limit: int) -> ChatMessage:
    """Return a message with results of at most `limit` characters each; the same object if they are no longer."""
    parts = tuple([shorten(part, limit) for part in said.parts])
    is_same = all(one is two for one, two in zip(parts, said.parts, strict=True))
    return said if is_same else attrs.evolve(said, parts=parts)


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


def _has_results(message: ChatMessage) -> bool:
    return message.role == "tool" or _has_text_results(message)


def _has_text_results(message: ChatMessage) -> bool:
    """Return True for a message with results of calls that stood in text."""
    return isinstance(text := message.parts[0], Text) and text.text.startswith(TEXT_RESULTS)
