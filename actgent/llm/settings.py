"""Settings of a model from arguments, environment, file and defaults, in this order.

    setting       argument and file key   environment, the first that is set
    model         model                   LLM_MODEL
    API key       api_key                 the provider's own variable, LLM_API_KEY
    address       base_url                the provider's own variable, LLM_PROVIDER_URL
    streaming     stream                  LLM_STREAM_MODE
    longest text  max_tokens              LLM_MAX_TOKENS
    temperature   temperature             LLM_TEMPERATURE

An empty variable is not set; a temperature of 0 is. Keys never stand in a repr or an error.
"""

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from actgent.errors import ConfigurationError, nearest
from actgent.llm.base import LLM
from actgent.llm.models import key_variables, known_providers, resolve_model, split_model, url_variables

DEFAULT_PROVIDER = "openai"
"""Whose API a model without `provider:` is asked by, as most servers have it."""
FINE_TUNED = "ft"
"""What stands before the first colon in the names of OpenAI's own fine-tuned models."""
_SURE = 0.85
"""How much of a known provider's name makes another word a misspelling of it, even at an address of one's own."""
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
"""Field -> its variable, how to read that, and what it has to be."""
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
"""What a file may say of a model; a text is the model alone."""


def _at_least(minimum: float) -> Callable[[Any, "attrs.Attribute[Any]", Any], None]:
    def check(_: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and minimum <= value < float("inf")):
            raise ConfigurationError(f"{attribute.name}: a number from {minimum:g} is needed")

    return check


@attrs.frozen(kw_only=True)
class LLMSettings:
    """Which model, where, and how it is asked. None leaves it to the client."""

    model: str | None = None
    """`provider:MODEL`, or a name alone, which is asked over the API of OpenAI chat completions.

    A name alone may have a colon of its own (`llama3:8b`) where `base_url` says whom to ask; see `check_model`.
    """
    base_url: str | None = attrs.field(default=None, repr=False)
    """The address of the API; None is the provider's own."""
    api_key: str | None = attrs.field(default=None, repr=False)
    """The key; None is read from the provider's environment variable."""
    stream: bool | None = None
    """True if answers are read as they grow."""
    max_tokens: int | None = attrs.field(default=None, validator=_at_least(1))
    """The longest answer, in tokens."""
    temperature: float | None = attrs.field(default=None, validator=_at_least(0))
    """Passed on to the model."""
    timeout: float | None = attrs.field(default=None, validator=_at_least(0))
    """Seconds that one attempt may take."""

    def check_model(self) -> None:
        """Refuse a provider that nobody knows: its model would be asked of OpenAI, under all of the text as its name.

        Raises:
            ConfigurationError: it is not known; the text says the known ones, and the nearest.
        """
        if self.model and (reason := unknown_provider(self.model, has_address=self.base_url is not None)):
            raise ConfigurationError(reason)

    def build(self) -> LLM:
        """The client.

        Raises:
            ConfigurationError: no model is named, its provider is not known, or the client takes it not.
            MissingKey: the model needs a key, and there is none.
        """
        if not self.model:
            raise ConfigurationError(
                "no model is named: pass llm=, set LLM_MODEL, or write `llm:` into brain.md"
            )
        self.check_model()
        given = attrs.asdict(self, filter=lambda field, value: value is not None and field.name != "model")
        return resolve_model(_with_provider(self.model), **given)


def load_settings(
    file: Mapping[str, Any] | str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    **arguments: Any,
) -> LLMSettings:
    """Settings from all sources; an argument that is None counts as not given, a text as `file` is the model.

    Raises:
        ConfigurationError: a variable, an argument or a value of the file is not what it has to be; it is named.
    """
    environment = os.environ if environment is None else environment
    in_file = {"model": file} if isinstance(file, str) else dict(file or {})
    given = {name: value for name, value in arguments.items() if value is not None}
    for unknown in (*given, *in_file):
        if unknown not in attrs.fields_dict(LLMSettings):
            raise ConfigurationError(
                f"a model has no setting {unknown!r}: {nearest(unknown, attrs.fields_dict(LLMSettings))}"
            )
    model = str(given.get("model") or environment.get("LLM_MODEL", "").strip() or in_file.get("model", ""))
    return LLMSettings(**{**in_file, **_from_environment(environment, model), **given})


def load_models(
    roles: Iterable[str], *, environment: Mapping[str, str] | None = None
) -> dict[str, LLMSettings]:
    """Settings of the models that the environment names for single roles, for `models=`; roles without one are left out.

    The variable of the role `planner` is `LLM_PLANNER_MODEL`, or else `TAGENT_PLANNER_MODEL`; key, address and the rest
    come from where those of any model do.

    Raises:
        ConfigurationError: a variable is not what it has to be; it is named.
    """
    environment = os.environ if environment is None else environment
    found = {}
    for role in roles:
        variables = (f"{prefix}_{role.upper()}_MODEL" for prefix in ("LLM", "TAGENT"))
        if model := next((text for each in variables if (text := environment.get(each, "").strip())), ""):
            found[role] = load_settings(environment=environment, model=model)
    return found


def _from_environment(environment: Mapping[str, str], model: str) -> dict[str, Any]:
    found = _converted(environment)
    provider = split_model(_with_provider(model))[0]
    own = {
        "api_key": (*key_variables(provider), "LLM_API_KEY"),
        "base_url": (*url_variables(provider), "LLM_PROVIDER_URL"),
    }
    for field, names in own.items():
        if text := next((set_ for name in names if (set_ := environment.get(name, "").strip())), ""):
            found[field] = text
    return found


def _converted(environment: Mapping[str, str]) -> dict[str, Any]:
    """What the variables of `_VARIABLES` say.

    Raises:
        ConfigurationError: one of them cannot be read.
    """
    found: dict[str, Any] = {}
    for field, (variable, convert, wanted) in _VARIABLES.items():
        if text := environment.get(variable, "").strip():
            try:
                found[field] = convert(text)
            except ValueError:
                raise ConfigurationError(f"the variable {variable} has to be {wanted}") from None
    return found


def _with_provider(model: str) -> str:
    return model if split_model(model)[0] in known_providers() else f"{DEFAULT_PROVIDER}:{model}"


def unknown_provider(model: str, *, has_address: bool) -> str | None:
    """Why a text names a provider that is not known; None where it does not.

    At an address of one's own the server knows what its models are called, so only what is plainly a misspelling counts.
    """
    provider, colon, _ = split_model(model)
    if not colon or provider in (*known_providers(), FINE_TUNED):
        return None
    if has_address and not difflib.get_close_matches(provider.casefold(), known_providers(), 1, _SURE):
        return None
    return (
        f"the model {model!r} is of no known provider: {nearest(provider, known_providers())} The providers are "
        f"{', '.join(known_providers())}; a model with a colon in its name is written {DEFAULT_PROVIDER}:{model}"
    )
