"""Structured answers: `output=` as a wrapper round any protocol."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from actgent.errors import ParseError
from actgent.llm.base import Answer, ResponseFormat
from actgent.tools.schema import compile_type

from .base import CallTools, Continue, Outcome, Protocol, Request, Say, View
from .extract import extract, visible
from .schemas import is_json_schema, schema_check

_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]+")
_MAX_NAME = 64
_JSON_STARTS = ("{", "[", "`")


@attrs.frozen
class Output:
    """What the answers of an agent have to be: a form for the model, and the way from JSON to the value."""

    name: str
    schema: Mapping[str, Any]
    """JSON Schema, or a template (see `schemas`)."""
    convert: Callable[[Any], Any] = attrs.field(repr=False)
    """The value of a decoded JSON value; raises ValueError if it does not fit, and says where."""

    def check(self, value: Any) -> str | None:
        """What is wrong with a decoded JSON value, None if nothing."""
        try:
            self.convert(value)
        except ValueError as error:
            return str(error)
        return None


def output_of(output: Any) -> Output:
    """The output that a type (builtin, attrs class, dataclass, TypedDict ...) or a form (a dict) stands for.

    Raises:
        ConfigurationError: JSON Schema cannot say it, or it is no JSON Schema.
    """
    if isinstance(output, Mapping):
        return Output(_name(output.get("title")), output, _form_converter(output))
    compiled = compile_type(output)
    return Output(_name(getattr(output, "__name__", None)), compiled.schema, compiled.convert)


def _form_converter(schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    check = schema_check(schema)

    def convert(value: Any) -> Any:
        if reason := check(value):
            raise ValueError(reason)
        return value

    return convert


def _name(name: Any) -> str:
    """As providers take it: at most 64 letters, digits, `_` and `-`."""
    return _NO_NAME.sub("_", name)[:_MAX_NAME] if isinstance(name, str) and name else "answer"


class WithOutput(Protocol):
    """A protocol whose turns end with a value of one form, in `Say.data`.

    The model is told the form, by the provider's own means where it has them. A value counts wherever the
    inner protocol leaves it: as its data, as its text, or as the whole answer.
    """

    def __init__(self, protocol: Protocol, output: Any) -> None:
        self.inner = protocol
        self.output = output_of(output)
        # An instance stands for its inner protocol, whose class has these.
        self.name = protocol.name  # type: ignore[misc]
        self.template = protocol.template  # type: ignore[misc]
        self.max_iterations = protocol.max_iterations
        form = json.dumps(self.output.schema, ensure_ascii=False, default=dict)
        self._hint = f"Your final answer must be JSON of this form: {form}"
        is_schema = is_json_schema(self.output.schema)
        self._format = ResponseFormat(self.output.name, self.output.schema) if is_schema else None

    def request(self, view: View) -> Request:
        request = self.inner.request(view)
        tail = f"{request.tail}\n\n{self._hint}" if request.tail else self._hint
        return attrs.evolve(request, tail=tail, response_format=request.response_format or self._format)

    def read(self, answer: Answer, view: View) -> list[Outcome]:
        try:
            outcomes = self.inner.read(answer, view)
        except ParseError:
            # A provider that keeps to the form leaves no room for the inner protocol's own, and a model that
            # does not may leave out the words beside the value.
            value = self._found_in(answer.text)
            return [Say(text=visible(answer.text), data=self.output.convert(value))]
        if any(isinstance(outcome, CallTools | Continue) for outcome in outcomes):
            return outcomes
        return [self._valued(said) if isinstance(said, Say) else said for said in outcomes]

    def partial(self, text: str) -> str | None:
        return self.inner.partial(text)

    def _valued(self, said: Say) -> Say:
        """The same words with the value.

        Raises:
            ParseError: there is none that fits; the text says where.
        """
        fits = said.data is not None and self.output.check(said.data) is None
        value = said.data if fits else self._value_in(said.text)
        return attrs.evolve(said, data=self.output.convert(value))

    def _found_in(self, text: str) -> Any:
        """The JSON value in a text that fits."""
        return self._fitting(extract(text, self._reason))[0]

    def _value_in(self, text: str) -> Any:
        """The same, or the text itself where that is what is wanted."""
        try:
            return self._found_in(text)
        except ParseError as error:
            cut = error.reason.startswith("truncated") and text.lstrip().startswith(_JSON_STARTS)
            if not cut and self.output.check(text) is None:
                return text
            raise

    def _reason(self, value: Any) -> str | None:
        return None if self._fitting(value) else self.output.check(value)

    def _fitting(self, value: Any) -> list[Any]:
        """The value if it fits, or else its only member that does: inner protocols have an envelope."""
        if self.output.check(value) is None:
            return [value]
        members = value.values() if isinstance(value, dict) else ()
        fitting = [found for member in members if isinstance(member, dict) for found in self._fitting(member)]
        return fitting if len(fitting) == 1 else []
