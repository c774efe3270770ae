"""Requests that fit into the context window of their model: what does not fit is never sent."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs

from actgent.errors import BadRequest, ContextOverflow
from actgent.errors.printable import counted
from actgent.journal.records import Fitting
from actgent.llm import context_window as window
from actgent.llm.base import LLM, Answer, Chat
from actgent.memory.base import ModelView
from actgent.memory.room import largest
from actgent.messages import ChatMessage, Part, ToolCall, ToolResult
from actgent.sessions.context import SessionContext
from actgent.sessions.conversation import SessionConversation
from actgent.sessions.turn import Turn
from actgent.support.foreign import failure_of
from actgent.support.logs import logger_of
from actgent.support.token_estimate import estimate_tokens
from actgent.tools.outputs.kept import ReadResult, keep_result
from actgent.tools.outputs.results import capped

HALF = 0.5
"""Share of the room that a request takes after a cut, so that the next cut is far away."""
MAX_SHARE = 0.9
"""Maximum share of a conversation that a cut keeps."""
SHORTENED = (10_000, 1_000)
"""Characters to which long results are shortened, the first that is enough."""

_ADVICE = (
    "the largest parts are: {}. Send less, let tools return less (Limits(result_characters=...)), ask for a shorter answer "
    "(max_tokens=), or take a model with a larger window; where context_window= says how large it is, look whether it is right"
)
_log = logger_of(__name__)

Assemble = Callable[[], Sequence[ChatMessage]]
"""Puts a request's messages together again, after its view was cut."""


@attrs.define(eq=False)
class ContextFitter:
    """Fits requests into windows; remembers of each conversation what the provider counted last."""

    _counted: "weakref.WeakKeyDictionary[SessionConversation, window.Counted]" = attrs.field(
        factory=weakref.WeakKeyDictionary
    )

    def note(self, context: SessionContext, llm: LLM, chat: Chat, answer: Answer) -> None:
        """Take what a provider counted."""
        if llm.context_window is None:
            return
        if counted := window.note(llm, chat, answer, self._counted.get(context.conversation)):
            self._counted[context.conversation] = counted

    async def fit(
        self, context: SessionContext, turn: Turn, llm: LLM, chat: Chat, assemble: Assemble
    ) -> Chat:
        """Return the request, cut where it would not fit: first by the view, then in long results.

        Where the estimate does not tell whether it fits, the provider is asked, if it counts.

        Raises:
            ContextOverflow: it does not fit all the same.
        """
        if llm.context_window is None:
            return chat
        turn.answer.fitting = None
        before = self._counted.get(context.conversation) or self._recorded(context, llm, chat)
        room = llm.context_window - window.answer_room(llm, chat, llm.context_window)
        if window.at_most(llm, chat, before) <= room:  # the usual case
            return chat
        if llm.counts_tokens and window.at_least(llm, chat, before) <= room:
            counted = await self._count(context, turn, llm, chat)
            if counted is not None and counted <= room:
                return chat
        return self._cut(context, turn, llm, chat, assemble, room=room)

    def _recorded(self, context: SessionContext, llm: LLM, chat: Chat) -> window.Counted | None:
        """Rebuild the token count of the last request after a session was restored, so that cuts happen as without a restart."""
        said = context.conversation.last_answer
        if said is None:
            return None
        context.conversation.last_answer = None
        answers = [place for place, each in enumerate(chat.messages) if each.role == "assistant"]
        is_shortened = said.fitting is not None and said.fitting.shortened
        is_other = said.model and not said.model.startswith(llm.name)
        if not answers or is_shortened or is_other:
            return None
        request = attrs.evolve(chat, messages=chat.messages[: answers[-1]])
        answer = Answer(parts=chat.messages[answers[-1]].parts, usage=said.usage)
        if counted := window.note(llm, request, answer):
            self._counted[context.conversation] = counted
        return counted

    async def _count(self, context: SessionContext, turn: Turn, llm: LLM, chat: Chat) -> int | None:
        """Ask the provider how long a request is, and remember it; within reach of an interruption."""
        turn.control.expose()
        try:
            counted = await llm.count_tokens(chat)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            _log.info("a request is estimated: %r", failure_of(raised, "model", llm.name))
            counted = None
        finally:
            turn.control.cover()
        turn.check()
        if counted is not None:
            self._counted[context.conversation] = window.counted_before(
                llm, chat, counted, self._counted.get(context.conversation)
            )
        return counted

    def compact(
        self, context: SessionContext, turn: Turn, llm: LLM, chat: Chat, assemble: Assemble
    ) -> Chat | None:
        """Return a request that takes half as much as the one that its provider found too long; None if there is none."""
        size = window.at_most(llm, chat, self._counted.get(context.conversation))
        try:
            return self._cut(context, turn, llm, chat, assemble, room=size // 2)
        except ContextOverflow:
            return None

    def _cut(
        self, context: SessionContext, turn: Turn, llm: LLM, chat: Chat, assemble: Assemble, *, room: int
    ) -> Chat:
        size_of = partial(window.at_most, llm, before=self._counted.get(context.conversation))
        size, view = size_of(chat), context.conversation.view
        fitting = turn.answer.fitting or Fitting(tokens=size, room=room)
        counted = self._counted.get(context.conversation)
        rate = counted.rate if counted is not None and counted.model == llm.name else 1.0
        shorten = partial(with_short_results, context, turn)
        for limit in (0, *SHORTENED):
            if limit and size > room:
                fitting = attrs.evolve(fitting, shortened=limit)
                chat = attrs.evolve(chat, messages=shorten(chat, limit))
                size = size_of(chat)
            while size > room and view.shrink(share := _share(view, chat, room * HALF / rate)):
                fitting = attrs.evolve(fitting, shares=(*fitting.shares, share))
                chat = attrs.evolve(chat, messages=assemble())
                if limit:
                    chat = attrs.evolve(chat, messages=shorten(chat, limit))
                size = size_of(chat)
                if not limit:  # a long result is shortened before the newest rounds are cut
                    break
        if size > room:
            raise _overflow(llm, chat, size, room)
        turn.answer.fitting = attrs.evolve(fitting, room=room)
        return chat


def _share(view: ModelView, chat: Chat, wanted: float) -> float:
    """Return the share of a view's messages to keep so that the request takes `wanted` estimated tokens."""
    shown = window.conversation(view.messages())
    others = window.estimate(chat) - shown
    return min(max((wanted - others) / shown, 0.0), MAX_SHARE) if shown else 0.0


def with_short_results(context: SessionContext, turn: Turn, chat: Chat, limit: int) -> list[ChatMessage]:
    """The messages with results of at most `limit` characters; the rest is kept where the model can read it."""
    can_read = any(tool.name == ReadResult.name for tool in chat.tools)

    def shortened(part: Part) -> Part:
        if not isinstance(part, ToolResult) or len(part.content) <= limit:
            return part
        if can_read and part.native:
            call = ToolCall(part.tool_name, {}, part.call_id)
            return attrs.evolve(
                part,
                content=keep_result(context, call, part.content, limit, most=turn.limits.kept_characters),
            )
        return attrs.evolve(part, content=capped(part.content, limit))

    return [
        attrs.evolve(said, parts=tuple(map(shortened, said.parts))) if said.role == "tool" else said
        for said in chat.messages
    ]


def fitter_for(models: Iterable[LLM]) -> ContextFitter | None:
    """A fitter where one of the models has a window, or a provider that may find a request too long."""
    needs = any(model.context_window is not None or model.refuses_length for model in models)
    return ContextFitter() if needs else None


def overflow_of(llm: LLM, chat: Chat, refused: BadRequest) -> ContextOverflow:
    """The error of a request that was cut, and is too long for its provider all the same."""
    size, parts = int(window.estimate(chat)), _largest(chat)
    text = (
        "the provider finds the request too long, also after what can be left out was left out: "
        f"{refused}; {_ADVICE.format(_named(parts))}"
    )
    return ContextOverflow(text, parts=parts, tokens=size, budget=llm.context_window or 0)


def _overflow(llm: LLM, chat: Chat, size: int, room: int) -> ContextOverflow:
    """The error of a request that does not fit whatever is left out."""
    parts = _largest(chat)
    text = (
        f"the request would take about {size:,} tokens, and of the context window of {llm.name} "
        f"({llm.context_window or 0:,} tokens) {room:,} are left for it beside the answer; {_ADVICE.format(_named(parts))}"
    )
    return ContextOverflow(text, parts=parts, tokens=size, budget=room)


def _largest(chat: Chat) -> list[tuple[str, int]]:
    others = [
        ("the system prompt", int(estimate_tokens(chat.system))),
        (f"the descriptions of {counted(len(chat.tools), 'tool')}", int(window.tool_tokens(chat.tools))),
    ]
    return largest(chat.messages, others)


def _named(parts: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{words} ({tokens:,})" for words, tokens in parts)
