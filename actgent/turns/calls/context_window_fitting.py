"""Fitting of model requests into the model's context window: drop old messages, then shorten long tool results."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs

from actgent.errors import BadRequest, ContextOverflow
from actgent.errors.text_escaping import counted
from actgent.journal.record_types import Fitting
from actgent.llm import context_window as window
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse
from actgent.memory.context_size_estimate import largest
from actgent.memory.memory_interface import ModelView
from actgent.messages import ChatMessage, Part, ToolCall, ToolResult
from actgent.sessions.conversation import SessionConversation
from actgent.sessions.session_context import SessionContext, Turn
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.safe_logging import logger_of
from actgent.support.token_estimate import estimate_tokens
from actgent.support.user_code_calls import convert_user_error
from actgent.tools.outputs.oversized_results import ReadResult, store_oversized
from actgent.tools.outputs.result_text import truncate

TARGET_SHARE = 0.52
"""Target share of the context window after a cut. Cutting this far makes cuts rare: measured requests then use 0.5 in the median.

With this share, 97 % of the measured requests use 0.45 to 0.55. The texts that a cut keeps may have more or fewer tokens per character
than the whole request, and only the next count of the provider shows how many.
"""
MAX_SHARE = 0.9
"""Maximum share of the conversation's messages that a cut keeps."""
RESULT_LENGTHS_CHARS = (10_000, 1_000)
"""Lengths in characters to which tool results are truncated; they are tried in order until the request fits."""

_ADVICE = (
    "the largest parts are: {}. Send less, let tools return less (Limits(result_characters=...)), ask for a shorter answer "
    "(max_tokens=), or take a model with a larger window; if context_window= is set, check its value"
)
_log = logger_of(__name__)

Assemble = Callable[[], Sequence[ChatMessage]]
"""Function that builds the messages of a request again, after messages were omitted from its view."""


@attrs.define(eq=False, repr=False)
class ContextFitter(FieldRepr):
    """Fits model requests into context windows. It caches the last token count that the provider returned for each conversation."""

    _counted: "weakref.WeakKeyDictionary[SessionConversation, window.CountedRequest]" = attrs.field(
        factory=weakref.WeakKeyDictionary
    )

    def note(self, context: SessionContext, llm: LLM, chat: ModelRequest, answer: ModelResponse) -> None:
        """Remember the prompt token count that the provider reported, to estimate the size of later requests.

        Do nothing for models without a known context window.
        """
        if llm.context_window is None:
            return
        if counted := window.count_answered(llm, chat, answer, self._counted.get(context.conversation)):
            self._counted[context.conversation] = counted

    async def fit(self, turn: Turn, llm: LLM, chat: ModelRequest, assemble: Assemble) -> ModelRequest:
        """Return the request, shortened if it exceeds the model's context window.

        Old messages are dropped first, then long tool results are truncated. If the estimate is inconclusive,
        the provider counts the tokens, if it offers that. `assemble` returns the messages again after the
        memory view was shortened.

        Raises:
            ContextOverflow: The request does not fit, even when shortened.
        """
        context = turn.session
        if llm.context_window is None:
            return chat
        turn.fitting = None
        before = self._counted.get(context.conversation) or self._restore_count(context, llm, chat)
        room = llm.context_window - window.reserved_answer_tokens(llm, chat, llm.context_window)
        if window.upper_bound(llm, chat, before) <= room:  # the usual case
            return chat
        if llm.counts_tokens and window.lower_bound(llm, chat, before) <= room:
            counted = await self._count(turn, llm, chat)
            if counted is not None and counted <= room:
                return chat
        return self._cut(turn, llm, chat, assemble, room=room)

    def _restore_count(
        self, context: SessionContext, llm: LLM, chat: ModelRequest
    ) -> window.CountedRequest | None:
        """After a restart, rebuild the token count of the session's last request from the journal; None if it is unknown.

        With this count, requests are shortened as they would have been without the restart.
        """
        last_answer = context.conversation.last_answer
        if last_answer is None:
            return None
        context.conversation.last_answer = None
        answers = [index for index, each in enumerate(chat.messages) if each.role == "assistant"]
        is_shortened = last_answer.fitting is not None and last_answer.fitting.shortened
        is_other = last_answer.model and not last_answer.model.startswith(llm.name)
        if not answers or is_shortened or is_other:
            return None
        request = attrs.evolve(chat, messages=chat.messages[: answers[-1]])
        answer = ModelResponse(parts=chat.messages[answers[-1]].parts, usage=last_answer.usage)
        if counted := window.count_answered(llm, request, answer):
            self._counted[context.conversation] = counted
        return counted

    async def _count(self, turn: Turn, llm: LLM, chat: ModelRequest) -> int | None:
        """Ask the provider for the token count of a request; None if the call fails.

        An interruption of the turn cancels it.

        Raises:
            Interrupted, ModelTimeout, ...: The turn was stopped.
        """
        context = turn.session
        turn.expose()
        try:
            counted = await llm.count_tokens(chat)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            _log.info("a request is estimated: %r", convert_user_error(raised, "model", llm.name))
            counted = None
        finally:
            turn.cover()
        turn.check()
        if counted is not None:
            self._counted[context.conversation] = window.count_unsent(
                llm, chat, counted, self._counted.get(context.conversation)
            )
        return counted

    def compact(self, turn: Turn, llm: LLM, chat: ModelRequest, assemble: Assemble) -> ModelRequest | None:
        """Return a request of about half the size after the provider rejected `chat` as too long; None if it cannot be shortened.

        `assemble` returns the messages again after the memory view was shortened.
        """
        context = turn.session
        size = window.upper_bound(llm, chat, self._counted.get(context.conversation))
        try:
            return self._cut(turn, llm, chat, assemble, room=size // 2)
        except ContextOverflow:
            return None

    def _cut(
        self, turn: Turn, llm: LLM, chat: ModelRequest, assemble: Assemble, *, room: int
    ) -> ModelRequest:
        context = turn.session
        size_of = partial(window.upper_bound, llm, before=self._counted.get(context.conversation))
        size, view = size_of(chat), context.conversation.current_view()
        fitting = turn.fitting or Fitting(tokens=size, room=room)
        counted = self._counted.get(context.conversation)
        rate = counted.rate if counted is not None and counted.model == llm.name else 1.0
        shorten = partial(with_short_results, turn)
        for limit in (0, *RESULT_LENGTHS_CHARS):
            if limit and size > room:
                fitting = attrs.evolve(fitting, shortened=limit)
                chat = attrs.evolve(chat, messages=shorten(chat, limit))
                size = size_of(chat)
            while size > room and view.shrink(share := _share(view, chat, room * TARGET_SHARE / rate)):
                fitting = attrs.evolve(fitting, shares=(*fitting.shares, share))
                chat = attrs.evolve(chat, messages=assemble())
                if limit:
                    chat = attrs.evolve(chat, messages=shorten(chat, limit))
                size = size_of(chat)
                if not limit:  # shorten long results before removing the newest rounds
                    break
        if size > room:
            raise _overflow(llm, chat, size, room)
        turn.fitting = attrs.evolve(fitting, room=room)
        return chat


def _share(view: ModelView, chat: ModelRequest, target_tokens: float) -> float:
    """Return the fraction of the conversation to keep, so that the request has about `target_tokens` estimated tokens.

    System prompt and tools are not shortened, so the conversation must become smaller instead.
    """
    shown = window.conversation_tokens(view.messages())
    others = window.estimate_request(chat) - shown
    return min(max((target_tokens - others) / shown, 0.0), MAX_SHARE) if shown else 0.0


def with_short_results(turn: Turn, chat: ModelRequest, limit: int) -> list[ChatMessage]:
    """Return the messages of a request with tool results cut to `limit` characters.

    If the model has the tool `read_result`, a cut result is stored for that tool. Otherwise the end of the result is lost.
    """
    context = turn.session
    can_read = any(tool.name == ReadResult.name for tool in chat.tools)

    def shortened(part: Part) -> Part:
        if not isinstance(part, ToolResult) or len(part.content) <= limit:
            return part
        if can_read and part.native:
            call = ToolCall(part.tool_name, {}, part.call_id)
            return attrs.evolve(
                part,
                content=store_oversized(
                    context, call, part.content, limit, session_limit=turn.limits.kept_characters
                ),
            )
        return attrs.evolve(part, content=truncate(part.content, limit))

    return [
        attrs.evolve(message, parts=tuple(map(shortened, message.parts)))
        if message.role == "tool"
        else message
        for message in chat.messages
    ]


def fitter_for(models: Iterable[LLM]) -> ContextFitter | None:
    """Return a fitter if one of the models has a context window or may reject a long request; None otherwise."""
    needs = any(model.context_window is not None or model.refuses_length for model in models)
    return ContextFitter() if needs else None


def overflow_of(llm: LLM, chat: ModelRequest, refused: BadRequest) -> ContextOverflow:
    """Return the `ContextOverflow` error for a shortened request that the provider again rejected as too long (`refused`)."""
    size, parts = int(window.estimate_request(chat)), _largest(chat)
    text = (
        "the provider finds the request too long, also after what can be left out was left out: "
        f"{refused}; {_ADVICE.format(_format_token_counts(parts))}"
    )
    return ContextOverflow(text, parts=parts, tokens=size, budget=llm.context_window or 0)


def _overflow(llm: LLM, chat: ModelRequest, size: int, room: int) -> ContextOverflow:
    """Return the ContextOverflow error for a request of `size` tokens that does not fit into `room` tokens when shortened."""
    parts = _largest(chat)
    text = (
        f"the request would take about {size:,} tokens, and of the context window of {llm.name} "
        f"({llm.context_window or 0:,} tokens) {room:,} are left for it after the reserve for the answer;  {_ADVICE.format(_format_token_counts(parts))}"
    )
    return ContextOverflow(text, parts=parts, tokens=size, budget=room)


def _largest(chat: ModelRequest) -> list[tuple[str, int]]:
    others = [
        ("the system prompt", int(estimate_tokens(chat.system))),
        (f"the descriptions of {counted(len(chat.tools), 'tool')}", int(window.tool_tokens(chat.tools))),
    ]
    return largest(chat.messages, others)


def _format_token_counts(parts: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{words} ({tokens:,})" for words, tokens in parts)
