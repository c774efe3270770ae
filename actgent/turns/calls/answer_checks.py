"""Checks of a model answer before the turn uses it: its type and its stop reason."""

from actgent.errors import ContentFiltered, Refusal, StreamInterrupted, TruncatedAnswer
from actgent.llm.base import LLM, ModelResponse, StopReason

_WHOLE: tuple[StopReason, ...] = ("end", "tool_calls", "pause")


def check_stop(answer: ModelResponse) -> None:
    """Raise an error if a model answer is refused, filtered or truncated.

    Raises:
        Refusal: The model declined to answer.
        ContentFiltered: The provider's content filter removed the answer.
        TruncatedAnswer: The answer was cut at the token limit.
    """
    if answer.stop in _WHOLE:
        return
    match answer.stop:
        case "refusal":
            raise Refusal(f"the model declined to answer: {answer.text[:200]}".rstrip(": "), answer.text)
        case "filter":
            raise ContentFiltered("the provider's content filter removed the answer", answer.text)
        case "length":
            raise TruncatedAnswer(
                "the answer was cut at the token limit: raise max_tokens, or ask for less", answer.text
            )


def check_answer(answer: object, llm: LLM) -> ModelResponse:
    """Return the result of `LLM.complete()` if it is a `ModelResponse`.

    Raises:
        StreamInterrupted: The model client returned another type; the error names the client class.
    """
    if isinstance(answer, ModelResponse):
        return answer
    raise StreamInterrupted(
        f"{type(llm).__name__}.complete() returned {type(answer).__name__}, and has to return a ModelResponse",
        model=llm.name,
    )
