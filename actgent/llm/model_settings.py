"""Settings of a model. Each is taken from the first of: argument, environment variable, file, default.

    setting      argument and file key   environment variables, the first that is set
    model        model                   LLM_MODEL
    API key      api_key                 the provider's variable, LLM_API_KEY
    base URL     base_url                the provider's variable, LLM_PROVIDER_URL
    streaming    stream                  LLM_STREAM_MODE
    max. tokens  max_tokens              LLM_MAX_TOKENS
    temperature  temperature             LLM_TEMPERATURE

An empty variable counts as unset; a temperature of 0 is a value. Keys never appear in a repr or an error.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from actgent.errors import ConfigurationError, did_you_mean, did_you_mean_or_list
from actgent.llm.model_interface import LLM
from actgent.llm.model_resolution import (
    key_variables,
    known_providers,
    resolve_model,
    split_model,
    url_variables,
)
from actgent.support.attrs_class_repr import FieldRepr

DEFAULT_PROVIDER = "openai"
"""Provider of a model without `provider:`, since most servers implement OpenAI's API."""
FINE_TUNED = "ft"
"""Prefix of the names of OpenAI's fine-tuned models, such as `ft:gpt-4o:...`."""
_MISSPELLING_RATIO = 0.85
"""Minimum similarity from 0 to 1 at which a word is a misspelling of a provider name, if a base URL is given."""
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _flag(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError("true or false")
    return text.lower() in _TRUE


_VARIABLES: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "model": ("LLM_MODEL", str, "the name of a model"),
    "stream": ("LLM_STREAM_MODE", _flag, "true or false"),
    "max_tokens": ("LLM_MAX_TOKENS", int, "a whole number from 1"),
    "temperature": ("LLM_TEMPERATURE", float, "a number from 0"),
}
"""Environment variable of each setting, the function that parses its value, and the expected value for the error."""
SCHEMA: Mapping[str, Any] = {
    "type": ["string", "object"],
    "minLength": 1,
    "properties": {
        "model": {"type": "string", "minLength": 1},
        "base_url": {"type": "string", "pattern": "^https?://"},
        "api_key": {"type": "string", "minLength": 1},
        "stream": {"type": "boolean"},
        "max_tokens": {"type": "integer", "minimum": 1},
        "temperature": {"type": "number", "minimum": 0},
        "timeout": {"type": "number", "exclusiveMinimum": 0},
    },
    "additionalProperties": False,
}
"""JSON Schema of `llm:` in a file. A text is the model name alone."""


def _at_least(minimum: float) -> Callable[[Any, "attrs.Attribute[Any]", Any], None]:
    def check(_: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and minimum <= value < float("inf")):
            raise ConfigurationError(f"{attribute.name} must be a number of at least {minimum:g}")

    return check


@attrs.frozen(kw_only=True, repr=False)
class LLMSettings(FieldRepr):
    """Settings of one model. None means that the client uses its default."""

    model: str | None = None
    """`provider:MODEL`, or a model name without provider for a server with OpenAI's chat completions API.

    If `base_url` is set, a model name may contain a colon (`llama3:8b`).
    """
    base_url: str | None = attrs.field(default=None, repr=False)
    """Base URL of the API; None uses the provider's environment variable or default."""
    api_key: str | None = attrs.field(default=None, repr=False)
    """API key; None reads the provider's environment variable."""
    stream: bool | None = None
    """True streams every answer, and False none. None streams an answer if the caller passes `on_text`."""
    max_tokens: int | None = attrs.field(default=None, validator=_at_least(1))
    """Maximum tokens of an answer; None uses the client's default."""
    temperature: float | None = attrs.field(default=None, validator=_at_least(0))
    """Sampling temperature, at least 0; None uses the provider's default."""
    timeout: float | None = attrs.field(default=None, validator=_at_least(0))
    """Maximum seconds of one attempt, streaming included; None uses the client's default."""

    def check_model(self) -> None:
        """Raise `ConfigurationError` if the provider in `model` is unknown, so that it is not taken for a model of OpenAI.

        Raises:
            ConfigurationError: The provider is unknown. The text lists the known providers and the most similar one.
        """
        if self.model and (reason := unknown_provider(self.model, has_address=self.base_url is not None)):
            raise ConfigurationError(reason)

    def build(self) -> LLM:
        """Create the client of the model that these settings describe.

        Raises:
            ConfigurationError: No model is set, its provider is unknown, or the client rejects a setting.
            MissingKey: The provider needs an API key, and none is set.
        """
        if not self.model:
            raise ConfigurationError(
                "no model is set: pass llm=, set LLM_MODEL, or write `llm:` into brain.md"
            )
        self.check_model()
        given = attrs.asdict(self, filter=lambda field, value: value is not None and field.name != "model")
        return resolve_model(_add_default_provider(self.model), **given)


def load_settings(
    file: Mapping[str, Any] | str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    **arguments: Any,
) -> LLMSettings:
    """Load the settings of a model from all sources.

    Args:
        file: Value of `llm:` in a file: a dict of settings, or the model name.
        environment: Environment variables; None uses those of the process.
        arguments: Settings of the caller. None means that the setting is not given.

    Raises:
        ConfigurationError: A setting of a file, variable or argument is unknown or invalid. The text names it.
    """
    environment = os.environ if environment is None else environment
    in_file = {"model": file} if isinstance(file, str) else dict(file or {})
    given = {name: value for name, value in arguments.items() if value is not None}
    for unknown in (*given, *in_file):
        if unknown not in attrs.fields_dict(LLMSettings):
            raise ConfigurationError(
                f"a model has no setting {unknown!r}: {did_you_mean_or_list(unknown, attrs.fields_dict(LLMSettings))}"
            )
    model = str(given.get("model") or environment.get("LLM_MODEL", "").strip() or in_file.get("model", ""))
    return LLMSettings(**{**in_file, **_from_environment(environment, model), **given})


def load_models(
    roles: Iterable[str], *, environment: Mapping[str, str] | None = None
) -> dict[str, LLMSettings]:
    """Load the settings of the roles whose model is set by an environment variable. Other roles are omitted.

    The model of the role `planner` is read from `LLM_PLANNER_MODEL`, else `TAGENT_PLANNER_MODEL`. The other settings are read
    from the variables that apply to any model.

    Args:
        roles: Names of the roles.
        environment: Environment variables; None uses those of the process.

    Raises:
        ConfigurationError: A variable has an invalid value. The text names it.
    """
    environment = os.environ if environment is None else environment
    found = {}
    for role in roles:
        variables = (f"{prefix}_{role.upper()}_MODEL" for prefix in ("LLM", "TAGENT"))
        if model := next((text for each in variables if (text := environment.get(each, "").strip())), ""):
            found[role] = load_settings(environment=environment, model=model)
    return found


def _from_environment(environment: Mapping[str, str], model: str) -> dict[str, Any]:
    found = _parse_variables(environment)
    provider = split_model(_add_default_provider(model))[0]
    own = {
        "api_key": (*key_variables(provider), "LLM_API_KEY"),
        "base_url": (*url_variables(provider), "LLM_PROVIDER_URL"),
    }
    for field, names in own.items():
        if text := next((set_ for name in names if (set_ := environment.get(name, "").strip())), ""):
            found[field] = text
    return found


def _parse_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    """Parse the environment variables in `_VARIABLES` that are set. Return the settings by name.

    Raises:
        ConfigurationError: The value of a variable cannot be parsed.
    """
    found: dict[str, Any] = {}
    for field, (variable, convert, wanted) in _VARIABLES.items():
        if text := environment.get(variable, "").strip():
            try:
                found[field] = convert(text)
            except ValueError:
                raise ConfigurationError(f"the variable {variable} must be {wanted}") from None
    return found


def _add_default_provider(model: str) -> str:
    return model if split_model(model)[0] in known_providers() else f"{DEFAULT_PROVIDER}:{model}"


def unknown_provider(model: str, *, has_address: bool) -> str | None:
    """Return an error text if a model name begins with an unknown provider; None if the provider is missing or known.

    `has_address` is True if a base URL is set. The server may then define model names with a colon, so only a likely
    misspelling of a provider is an error.
    """
    provider, colon, _ = split_model(model)
    if not colon or provider in (*known_providers(), FINE_TUNED):
        return None
    import difflib  # noqa: PLC0415 - only names of unknown providers need it

    if has_address and not difflib.get_close_matches(
        provider.casefold(), known_providers(), 1, _MISSPELLING_RATIO
    ):
        return None
    names, guess = ", ".join(known_providers()), did_you_mean(provider, known_providers())
    choice = f"{guess} The providers are {names}" if guess else f"choose one of {names}"
    return (
        f"the model {model!r} names an unknown provider: {choice}. "
        f"Write a model with a colon in its name as {DEFAULT_PROVIDER}:{model}"
    )
