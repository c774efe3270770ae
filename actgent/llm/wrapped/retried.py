"""Any model, asked again where a failure may pass: for models that do not repeat calls by themselves."""

import attrs

from actgent.errors import ModelError, ProviderUnavailable
from actgent.llm.adapters import ModelLike
from actgent.llm.base import Answer, Chat, OnText
from actgent.llm.client_errors import as_model_error, wrapped
from actgent.llm.retry import Retry
from actgent.llm.spans import complete_as_span

from .wrapping import WrappingModel


class Retried(WrappingModel):
    """A model whose failed calls are repeated as a `Retry` says: those that are `retryable`, and those of classes named here.

    Connection errors, timeouts and HTTP statuses such as 429 and 503 of a client of your own are retryable, other exceptions are not.
    """

    def __init__(
        self,
        llm: ModelLike | str,
        retry: Retry | None = None,
        *,
        retry_on: tuple[type[Exception], ...] = (),
    ) -> None:
        """Wrap a model.

        Args:
            llm: The model; one by name repeats by itself already.
            retry: How often and after which pauses; by default as clients of providers do.
            retry_on: Further exceptions of the model's own client that are retried.
        """
        super().__init__(llm)
        self.retry, self.retry_on = retry or Retry(), retry_on

    async def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Answer:
        watch = chat.watch

        async def attempt(number: int) -> Answer:
            if watch is not None:
                watch.begin(self.name, number)
            try:
                return await complete_as_span(
                    self.llm, chat, on_text=None if on_text is None else _numbered(on_text, number)
                )
            except self.retry_on as error:
                if isinstance(error, ModelError):
                    raise
                raise wrapped(error, ProviderUnavailable, model=self.name) from error
            except Exception as error:
                failure = as_model_error(error, self.name)
                if failure is error:
                    raise
                raise failure from failure.__cause__

        def failed(number: int, error: ModelError, pause: float | None) -> None:
            if watch is not None:
                watch.fail(self.name, number, error, pause)

        return await self.retry.run(attempt, deadline=chat.deadline, on_failure=failed)

    def __repr__(self) -> str:
        return f"Retried({self.llm!r}, {attrs.evolve(self.retry)!r})"


def _numbered(on_text: OnText, number: int) -> OnText:
    async def pass_on(text: str, attempt: int) -> None:
        await on_text(text, number + attempt)

    return pass_on
