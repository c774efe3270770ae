"""Custom providers by name, and models by role from the environment."""

import json
from typing import ClassVar

import pytest

from actgent import (
    AgentBuilder,
    BareAgent,
    ConfigurationError,
    GoalAgent,
    ModelResponse,
    ScriptedLLM,
    Text,
    register_provider,
    run_agent,
)
from actgent.agents.goal import GoalResult
from actgent.llm import model_resolution
from actgent.llm.model_interface import LLM
from actgent.llm.model_resolution import resolve_model
from actgent.llm.model_settings import LLMSettings, load_models, load_settings

ROLES = ("planner", "executor", "summarizer", "evaluator", "finalizer")


class Acme(LLM):
    """A custom client."""

    made: ClassVar = []

    def __init__(self, model, *, temperature=None, base_url=None):
        self.name = f"acme:{model}"
        self.settings = {"temperature": temperature, "base_url": base_url}
        self.made.append(self)

    async def complete(self, chat, *, on_text=None):
        return ModelResponse(parts=(Text(f"{self.name} says hello"),))


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Remove the providers that a test registers."""
    monkeypatch.setattr(model_resolution, "_registered", {})
    monkeypatch.setattr(Acme, "made", [])


async def test_custom_provider_is_selected_by_name():
    """After `integrate_custom_llm` the name selects the provider in agents, by role and in `run_agent`."""
    register_provider("acme", Acme)
    async with BareAgent("clerk", llm="acme:small") as clerk:
        assert (await clerk.run("hi")).text == "acme:small says hello"
    async with GoalAgent("worker", llm="acme:small", models={"planner": "acme:big"}):
        pass
    assert sorted(client.name for client in Acme.made) == ["acme:big", "acme:small", "acme:small"]


async def test_builder_and_environment_accept_a_custom_provider(monkeypatch):
    """Builders and variables accept a custom provider. The factory gets only the settings that it accepts."""
    register_provider("acme", Acme)
    monkeypatch.setenv("LLM_MODEL", "acme:small")
    monkeypatch.setenv("LLM_API_KEY", "secret")  # the factory has no key parameter
    monkeypatch.setenv("LLM_TEMPERATURE", "0.5")
    monkeypatch.setenv("ACME_BASE_URL", "http://acme.example")
    async with AgentBuilder("clerk").build() as clerk:
        assert str(await clerk.run("hi")) == "acme:small says hello"
    assert Acme.made[-1].settings == {"temperature": 0.5, "base_url": "http://acme.example"}
    with pytest.raises(ConfigurationError, match="has no parameter max_tokens="):
        load_settings(max_tokens=5).build()


async def test_function_can_be_a_provider_factory():
    """A function can be the factory. One with `**keywords` gets all settings."""
    seen = {}

    def make(model, **options):
        seen.update(options)
        return ScriptedLLM([f"{model} says hi"])

    register_provider("toy", make)
    made = LLMSettings(model="toy:m:1", temperature=0.0, timeout=3).build()
    assert seen == {"temperature": 0.0, "timeout": 3}
    async with BareAgent("clerk", llm=made) as clerk:
        assert str(await clerk.run("hi")) == "m:1 says hi"


@pytest.mark.parametrize(
    ("name", "factory", "reason"),
    [
        ("openai", Acme, "built in"),
        ("groq", Acme, "built in"),
        ("ft", Acme, "provider name .* is invalid"),
        ("Acme", Acme, "provider name .* is invalid"),
        ("a:b", Acme, "provider name .* is invalid"),
        ("", Acme, "provider name .* is invalid"),
        ("7", Acme, "provider name .* is invalid"),
        ("acme", "Acme", "must be a callable"),
    ],
)
def test_invalid_provider_names_are_rejected(name, factory, reason):
    """Names of built-in providers and names that cannot precede a colon are rejected."""
    with pytest.raises(ConfigurationError, match=reason):
        register_provider(name, factory)


def test_second_factory_of_a_name_needs_replace():
    """A second factory needs replace=True. Registering the same factory again is allowed."""
    register_provider("acme", Acme)
    register_provider("acme", Acme)
    with pytest.raises(ConfigurationError, match="registered already: pass replace=True"):
        register_provider("acme", ScriptedLLM)
    register_provider("acme", lambda model: ScriptedLLM([model]), replace=True)
    assert isinstance(resolve_model("acme:x"), ScriptedLLM)


def test_invalid_result_of_a_provider_factory_is_rejected():
    """A text would select a factory again, in an endless loop."""
    register_provider("round", lambda model: f"round:{model}")
    with pytest.raises(ConfigurationError, match="must return a client, not a string"):
        resolve_model("round:x")
    register_provider("none", lambda _: None)
    with pytest.raises(ConfigurationError, match="not None"):
        resolve_model("none:x")


def test_unknown_provider_error_lists_the_known_ones():
    """The error also suggests the nearest name."""
    register_provider("acme", Acme)
    with pytest.raises(ConfigurationError, match="acme:MODEL"):
        resolve_model("acne:x")
    with pytest.raises(ConfigurationError, match="'acme'"):
        LLMSettings(model="acne:x").build()


# --- roles -------------------------------------------------------------------------------------


def test_role_variable_selects_its_model():
    """Case 21: a role uses its own variable, in our name or the seed's, or the default model."""
    environment = {
        "LLM_PLANNER_MODEL": "openai:gpt-5.2",
        "TAGENT_PLANNER_MODEL": "openai:gpt-4",
        "TAGENT_FINALIZER_MODEL": "anthropic:claude-sonnet-4-5",
        "LLM_EXECUTOR_MODEL": " ",
        "ANTHROPIC_API_KEY": "a",
        "LLM_API_KEY": "b",
    }
    named = load_models(ROLES, environment=environment)
    assert {role: each.model for role, each in named.items()} == {
        "planner": "openai:gpt-5.2",
        "finalizer": "anthropic:claude-sonnet-4-5",
    }
    assert [each.api_key for each in named.values()] == ["b", "a"]


async def test_builders_take_roles_from_the_environment(monkeypatch):
    """The planner's variable selects its model. `models=` overrides the variable."""
    register_provider("acme", Acme)
    monkeypatch.setenv("LLM_MODEL", "acme:small")
    monkeypatch.setenv("LLM_PLANNER_MODEL", "acme:big")
    monkeypatch.setenv("TAGENT_EVALUATOR_MODEL", "acme:strict")
    AgentBuilder("worker").protocol("goal").build()
    assert {client.name for client in Acme.made} == {"acme:small", "acme:big", "acme:strict"}
    Acme.made.clear()
    AgentBuilder("worker").protocol("goal").build(models={"planner": ScriptedLLM([])})
    assert {client.name for client in Acme.made} == {"acme:small", "acme:strict"}
    Acme.made.clear()
    AgentBuilder("clerk").build()  # a protocol without roles
    assert [client.name for client in Acme.made] == ["acme:small"]


async def test_run_agent_accepts_models_by_role():
    plan = json.dumps({"action": "plan", "params": {"steps": ["sum up"]}})
    planner = ScriptedLLM([plan])
    texts = [
        {"action": "summarize", "params": {"summary": "so it is"}},
        {"action": "evaluate", "params": {"achieved": True}},
    ]
    result = await run_agent("know", ScriptedLLM([*map(json.dumps, texts)]), models={"planner": planner})
    assert isinstance(result, GoalResult)
    assert (result.text, len(planner.chats)) == ("so it is", 1)
