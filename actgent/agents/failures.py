"""Which kind of failure an exception is."""

from actgent.errors import (
    ContentFiltered,
    EmptyAnswer,
    HandlerFailed,
    Interrupted,
    LimitReached,
    ModelError,
    ParseError,
    Refusal,
    SessionClosed,
    Stopped,
    TruncatedAnswer,
)
from actgent.llm.base import Answer

KINDS: tuple[tuple[type[Exception], str], ...] = (
    (ParseError, "parse"),
    (ModelError, "model"),
    (LimitReached, "limit"),
    (HandlerFailed, "handler"),
    (Refusal, "refusal"),
    (ContentFiltered, "filter"),
    (TruncatedAnswer, "length"),
    (EmptyAnswer, "empty"),
    (Interrupted, "interrupted"),
    (Stopped, "stopped"),
    (SessionClosed, "stopped"),
)
"""Everything else is `internal`: a mistake in actgent or in a user's protocol."""


def kind_of(error: Exception) -> str:
    """The `Failure.kind` of an exception."""
    return next((kind for cls, kind in KINDS if isinstance(error, cls)), "internal")


def check_answer(answer: Answer) -> None:
    """Refuse an answer that cannot be acted on, whatever the protocol.

    Raises:
        AnswerError: refused, filtered, cut at the token limit, or empty.
    """
    match answer.stop:
        case "refusal":
            raise Refusal(f"the model declined to answer: {answer.text[:200]}".rstrip(": "), answer.text)
        case "filter":
            raise ContentFiltered("the provider's content filter removed the answer", answer.text)
        case "length":
            raise TruncatedAnswer(
                "the answer was cut at the token limit: raise max_tokens, or ask for less", answer.text
            )
        case "pause":
            return
    if not answer.tool_calls and not answer.text.strip():
        raise EmptyAnswer("the answer was empty", answer.text)
