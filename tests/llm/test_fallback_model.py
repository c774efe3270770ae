"""Fallback chains of models."""

import pytest

from actgent.errors import (
    BadRequest,
    ConfigurationError,
    ModelTimeout,
    NotAuthorized,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    StreamInterrupted,
)
from actgent.llm.fallback_model import FallbackModel
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse
from actgent.llm.scripted_model import ScriptedLLM
from actgent.messages import Text

CHAT = ModelRequest()


@pytest.mark.parametrize(
    "kind", [ProviderUnavailable, RateLimited, ModelTimeout, StreamInterrupted, QuotaExhausted]
)
async def test_the_next_model_answers(kind):
    """An error that a different provider may avoid leads to the next model."""
    chain = FallbackModel(ScriptedLLM([kind("no")]), ScriptedLLM([kind("no")]), ScriptedLLM(["yes"]))
    assert (await chain.complete(CHAT)).text == "yes"


@pytest.mark.parametrize("kind", [BadRequest, NotAuthorized])
async def test_invalid_requests_are_not_passed_to_the_next_model(kind):
    """An invalid request or key is raised at once, without the next model."""
    second = ScriptedLLM(["yes"])
    with pytest.raises(kind):
        await FallbackModel(ScriptedLLM([kind("no")]), second).complete(CHAT)
    assert second.chats == []


async def test_fallback_condition_is_configurable():
    """`when` decides which errors lead to the next model."""
    chain = FallbackModel(
        ScriptedLLM([BadRequest("no")]),
        ScriptedLLM(["yes"]),
        when=lambda error: isinstance(error, BadRequest),
    )
    assert (await chain.complete(CHAT)).text == "yes"


async def test_last_error_has_notes_of_earlier_errors():
    """The notes of the last error name the models that failed before."""
    chain = FallbackModel(ScriptedLLM([RateLimited("first")]), ScriptedLLM([ProviderUnavailable("second")]))
    with pytest.raises(ProviderUnavailable, match="second") as caught:
        await chain.complete(CHAT)
    assert caught.value.__notes__ == ["before that, RateLimited: first"]


class Stuttering(LLM):
    """A model that streams text in two attempts, then fails or answers."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.closed = False

    async def complete(self, chat, *, on_text=None):
        for attempt in range(2):
            await on_text("x", attempt)
        if self.error:
            raise self.error
        return ModelResponse(parts=(Text("xx"),))

    async def aclose(self):
        self.closed = True


async def test_attempt_numbers_increase_across_models():
    """Each model's attempt numbers are above those before, which invalidates earlier partial text."""
    seen = []

    async def show(text, attempt):
        seen.append(attempt)

    await FallbackModel(Stuttering(RateLimited("no")), Stuttering(None)).complete(CHAT, on_text=show)
    assert seen == [0, 1, 2, 3]


async def test_model_may_occur_twice_in_a_chain():
    """The model is called at both positions."""
    model = ScriptedLLM([RateLimited("no"), "yes"])
    assert (await FallbackModel(model, model).complete(CHAT)).text == "yes"


async def test_closing_the_chain_closes_its_models():
    """The chain owns its models."""
    models = Stuttering(None), Stuttering(None)
    await FallbackModel(*models).aclose()
    assert all(model.closed for model in models)


def test_empty_chain_is_rejected():
    """A chain needs at least one model and accepts only models."""
    with pytest.raises(ConfigurationError):
        FallbackModel()
    with pytest.raises(ConfigurationError):
        FallbackModel([])
    with pytest.raises(ConfigurationError, match="openai:MODEL"):
        FallbackModel(ScriptedLLM(["a"]), "gpt-5.2")


def test_chain_accepts_model_names(monkeypatch):
    """A chain accepts model names as strings."""
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    chain = FallbackModel("openai:gpt-5.2", ScriptedLLM(["b"], name="b"))
    assert chain.name == "fallback(openai:gpt-5.2, b)"
    assert FallbackModel(["openai:gpt-5.2", ScriptedLLM(["b"], name="b")]).name == chain.name


def test_the_name_lists_the_models():
    """The name of the chain, for logs, contains the names of its models."""
    assert FallbackModel(ScriptedLLM(["a"], name="a"), ScriptedLLM(["b"], name="b")).name == "fallback(a, b)"
