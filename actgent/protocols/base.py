"""How an agent and a model talk: a `Protocol` is a `PromptTemplate`, which asks, and a `Classifier`, which reads the answer.

A protocol is pure and sync, holds nothing of a session, and is shared by all of them. It
says what it made of an answer in *outcomes*; the core acts on them by one table. An outcome
list without `CallTools` or `Continue` ends the turn.
"""

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from actgent.errors import AnswerError, ConfigurationError, ParseError, nearest
from actgent.errors.printable import quoted, shown
from actgent.llm.base import Answer, ResponseFormat
from actgent.messages import (
    INTERMEDIATE,
    NO_METADATA,
    Event,
    Message,
    Route,
    Sender,
    Text,
    ToolCall,
    ToolSpec,
)
from actgent.structured.extract import extract, loads, visible
from actgent.structured.output import output_of
from actgent.structured.schemas import is_json_schema
from actgent.support.quick_init import maker, quick_init
from actgent.tools.schemas import compile_schema

from .growing import Growth

_JSON_STARTS = ("{", "[", "`")

# --- what a model may answer with ----------------------------------------------------------


MESSAGE_TYPE = "messageType"
"""The key under which an answer names its type."""


def read_schema(schema: object, place: str = "") -> Mapping[str, Any] | None:
    """Return a schema as a mapping; text is read as JSON, and empty text as no schema. Errors begin with `place`.

    Raises:
        ConfigurationError: The schema is neither an object nor the JSON text of an object.
    """
    if schema is None or isinstance(schema, Mapping):
        return schema
    if isinstance(schema, str):
        if not schema.strip():
            return None
        try:
            schema = loads(schema)
        except ParseError as error:
            raise ConfigurationError(
                f"{place}schema={quoted(str(schema))} is not JSON ({error.reason}): pass a dict, or the JSON text of an object"
            ) from None
    if not isinstance(schema, Mapping):
        raise ConfigurationError(
            f"{place}schema={shown(schema)} is not an object: pass a dict, or the JSON text of an object"
        )
    return schema


def _type_schema(schema: object) -> Mapping[str, Any]:
    return read_schema(schema) or {}


@attrs.frozen
class Instruction:
    """A named, described form of answer, as a developer writes it."""

    name: str
    """Unique among an agent's instructions and types; the model writes it as the type of its answer."""
    description: str = ""
    """When the model should answer in this form, in words."""
    schema: Mapping[str, Any] | None = attrs.field(default=None, converter=read_schema)
    """A JSON Schema, or the template form `{"field": "<what stands there>"}`, as a dict or JSON text; None takes any content."""
    tool: str | None = None
    """The tool that runs with the validated answer, and in no other way."""


@attrs.frozen
class ClassificationType:
    """The form that an instruction takes in prompts and classifiers."""

    name: str
    """Unique among an agent's types; the model writes it."""
    description: str = ""
    """When the model should answer in this form, in words."""
    schema: Mapping[str, Any] = attrs.field(factory=dict, converter=_type_schema)
    """Form of the answer's content, as a dict or JSON text; empty accepts any content. A schema with a member `messageType`
    is the form of the whole answer instead."""
    tool: str | None = None
    """The tool that runs with the validated answer; None where it becomes an event."""


_NAMES_OF_FIELDS: Mapping[str, str] = {
    "name": "name",
    "instructionName": "name",
    "description": "description",
    "schema": "schema",
    "schemaTemplate": "schema",
    "tool": "tool",
}


def _fields_of(given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the fields of an instruction or a type that is written as a dict."""
    fields: dict[str, Any] = {}
    for key, value in given.items():
        field = _NAMES_OF_FIELDS.get(key)
        if field is None:
            raise ConfigurationError(
                f"{what} {given!r:.200} has an unknown key: {nearest(str(key), list(_NAMES_OF_FIELDS))}"
            )
        if field in fields:
            raise ConfigurationError(
                f"{what} {given!r:.200} has the field {field!r} twice: remove one of the keys"
            )
        fields[field] = value
    if not isinstance(fields.get("name"), str):
        raise ConfigurationError(f'{what} {given!r:.200} has no name: add "name": "..."')
    if "schema" in fields:
        fields["schema"] = read_schema(fields["schema"], f"{what} {shown(fields['name'])}: ")
    return fields


def to_instruction(given: object) -> Any:
    """Return an instruction that is given as a name or a dict; any other value is returned as it is.

    Raises:
        ConfigurationError: The dict has an unknown key or no name.
    """
    if isinstance(given, str):
        return Instruction(given)
    return Instruction(**_fields_of(given, "instruction")) if isinstance(given, Mapping) else given


def to_type(given: object) -> Any:
    """Return a classification type that is given as a dict; any other value is returned as it is.

    Raises:
        ConfigurationError: The dict has an unknown key or no name.
    """
    return ClassificationType(**_fields_of(given, "type")) if isinstance(given, Mapping) else given


def types_from(instructions: Sequence[Instruction]) -> tuple[ClassificationType, ...]:
    """Return the classification types of instructions, in their order.

    Raises:
        ConfigurationError: A name is empty or used twice, or a schema is not usable.
    """
    types = checked_types(
        ClassificationType(each.name, each.description, each.schema or {}, each.tool) for each in instructions
    )
    if len(types) < len(instructions):
        names = [each.name for each in instructions]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(
            f"the instruction {twice!r} is given twice: each needs a name of its own, so remove or rename one of them"
        )
    return types


def checked_types(types: Iterable[ClassificationType]) -> tuple[ClassificationType, ...]:
    """Return the types of one agent, which the name alone tells apart. A type that is given twice counts once.

    Raises:
        ConfigurationError: A name is empty, two types have the same name (letter case does not count), a schema is
            not usable, or a schema demands the name of another type as its `messageType`.
    """
    known: dict[str, ClassificationType] = {}
    for kind in types:
        key = " ".join(kind.name.split()).casefold()
        if not key:
            raise ConfigurationError(f"{kind!r:.200} has an empty name: each type needs a name of its own")
        if known.setdefault(key, kind) != kind:
            raise ConfigurationError(
                f"the types {known[key].name!r} and {kind.name!r} have the same name (letter case does not count), "
                "and an answer names its type: rename one of them, each needs a name of its own"
            )
        if is_json_schema(kind.schema):
            compile_schema(kind.schema, owner=f"instruction {kind.name!r}")
    for kind in known.values():
        _check_own_name(kind, known)
    return tuple(known.values())


def is_whole_answer(schema: Mapping[str, Any]) -> bool:
    """Return True if a schema describes the whole answer with its `messageType`, not only the content of the answer."""
    return (
        MESSAGE_TYPE in (schema.get("properties") or ()) if is_json_schema(schema) else MESSAGE_TYPE in schema
    )


_COMBINED = (
    "$ref",
    "$dynamicRef",
    "anyOf",
    "oneOf",
    "allOf",
    "if",
    "not",
    "patternProperties",
    "enum",
    "const",
)


def member_names(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the names of the members that a schema describes; None if the schema does not list them."""
    if not is_json_schema(schema):
        return frozenset(schema)
    if "properties" not in schema or any(word in schema for word in _COMBINED):
        return None
    return frozenset(schema["properties"])


def _check_own_name(kind: ClassificationType, known: Mapping[str, ClassificationType]) -> None:
    """Refuse a schema of a whole answer with a name that is not the name of the type."""
    if not is_whole_answer(kind.schema):
        return
    if is_json_schema(kind.schema):
        form = kind.schema["properties"][MESSAGE_TYPE]
        wanted = form.get("const", kind.name) if isinstance(form, Mapping) else kind.name
        is_wrong = wanted != kind.name
    else:
        wanted = kind.schema[MESSAGE_TYPE]
        other = known.get(wanted.casefold()) if isinstance(wanted, str) else None
        is_wrong = other is not None and other is not kind
    if is_wrong:
        raise ConfigurationError(
            f"the schema of type {kind.name!r} has messageType {wanted!r}: write {kind.name!r} there, or leave messageType out"
        )


# --- what a protocol is shown and answers ---------------------------------------------------


@attrs.frozen(kw_only=True)
class Profile:
    """Who the agent is, as templates see it."""

    name: str = "agent"
    """The agent's name."""
    role: str = ""
    """Who it is, in words; empty where nothing was said, as in the fields below."""
    goal: str = ""
    """What it is there for."""
    capabilities: str = ""
    """What it can do."""
    instructions: Sequence[Instruction] = ()
    """The forms of answer that the developer described."""
    types: Sequence[ClassificationType] = ()
    """The same as classification types, and those that were given ready."""
    tools: Sequence[ToolSpec] = ()
    """Those that the agent had when it was made: the system prompt never moves. See `View.tools`."""
    body: str = ""
    """Further text of the developer's, e.g. the body of brain.md."""


@attrs.define(kw_only=True, eq=False)
class View:
    """What a protocol sees of a session, only to be read.

    One view serves one pass of a turn: rendering the request, and reading its answer, for which state and calls are
    brought up to then.
    """

    message: Message
    """The message that this pass answers."""
    record: Sequence[Message]
    """Everything that happened, oldest first. When a request is rendered it ends with `message`, behind which only
    notes of the kind system may stand; when an answer is read, with the answer."""
    state: Mapping[str, Any]
    """The session's state. What an answer is read against is the state as it was when the answer came, also where it
    is read again after a restart: so reading has to depend on nothing but the view and the answer."""
    stage: str | None = None
    """The stage that `message` goes on with; None at the turn's first pass."""
    calls: int = 0
    """Model calls of this turn so far; when an answer is read, with the one that gave it."""
    repairs: int = 0
    """Bad answers in a row so far."""
    profile: Profile
    """The agent's."""
    tools: Sequence[ToolSpec] = ()
    """The tools that the agent has when the model is asked; an access rule may refuse some of them at the call."""


@attrs.frozen(kw_only=True)
class Request:
    """What a protocol adds to the conversation for one model call."""

    tail: str = ""
    """Said at the very end of the prompt, for this call only."""
    model: str = "default"
    """The role of the model to ask, a key of the agent's `models`."""
    response_format: ResponseFormat | None = None
    """The form that the provider is asked to keep to; None is plain text."""


PLAIN_REQUEST = Request()

# --- outcomes -------------------------------------------------------------------------------


@quick_init
@attrs.frozen(kw_only=True)
class Say:
    """An answer for the user."""

    text: str
    """The words that the user is shown."""
    data: Any = None
    """The value of the declared output; None where none was declared."""
    message_type: str | None = None
    """The kind of the answer in the protocol's own words; None where it has none."""
    reasoning: Mapping[str, Any] | None = None
    """What the model said about its answer, in the protocol's own words; None where it said nothing."""


make_say = maker(Say)


@attrs.frozen
class CallTools:
    """Run tool calls. They start in order, and their results are the next message of the turn."""

    calls: Sequence[ToolCall]
    """Tool calls in the order of the answer."""
    stage: str | None = None
    """Stage in which the model gets the results; None is the first stage of the protocol."""


@attrs.frozen
class Change:
    """Change the state of the session. Changes are dispatched before all other outcomes of the answer."""

    action: Callable[[Mapping[str, Any]], Any]
    """Function of the state that returns changes: a pair `(key, value)`, a list of pairs, or None."""


@attrs.frozen
class Continue:
    """Call the model again in a stage, with a note after the conversation."""

    stage: str | None
    """Stage of the next model call; None is the first stage of the protocol."""
    note: str = ""
    """Text for the model after the conversation; empty adds no text."""


@attrs.frozen
class Finish:
    """End the turn, without another model call."""


@attrs.frozen
class Fail:
    """Reject the answer. After a `ParseError` the model is asked again, at most `Limits.repairs` times; else the turn fails."""

    error: AnswerError
    """Error that says what is wrong with the answer."""


Outcome = Say | Event | Route | CallTools | Change | Continue | Finish | Fail


# --- the two halves of a protocol -----------------------------------------------------------


class PromptTemplate(abc.ABC):
    """The asking half of a protocol: its texts, and what each model call adds to them.

    The texts are jinja2 templates, written by developers and rendered by a `PromptManager`. Each has its lifetime, so that
    the beginning of a prompt never moves: the system prompt is an agent's, the assistant prompt a session's, the user
    prompt a pass's.
    """

    name: ClassVar[str]
    template: ClassVar[str]
    """The system prompt, over `profile` and `examples`; rendered once for an agent, so it never moves. One that says `session`,
    `state` or `memory` is a session's, and rendered again when what it says changes."""
    assistant_template: ClassVar[str] = ""
    """Said as the agent's own words behind the system prompt, before all that is remembered: over `profile`, `examples`,
    `session` (`id`, `owner`, `description`), `state` and `memory`; the same in all passes of a session, until what it says changes."""
    user_template: ClassVar[str] = ""
    """Said behind the conversation in each pass, and not remembered: over the same and `message` (the text to be answered),
    `state`, `stage`, `calls` and `repairs`."""
    examples: ClassVar[Sequence[str]] = ()
    """Answers as this template asks for them. An agent is refused whose classifier cannot read one of them."""

    stages: ClassVar[Sequence[str]] = ()
    """The names of its stages, for `Agent.on_query(stage=)`; empty where all calls are alike."""
    final_stage: ClassVar[str | None] = None
    """The stage that answers the user. Answers of other stages are marked as intermediate; None marks no answer."""

    def request(self, view: View) -> Request:
        """Return what this call adds to the conversation."""
        return PLAIN_REQUEST

    def stage_name(self, view: View) -> str | None:
        """Return which of its `stages` this call is; None where it has none."""
        return view.stage

    def answer_metadata(self, view: View) -> Mapping[str, Any]:
        """Return the metadata of the message that will hold the answer to this call: its stage."""
        stage = self.stage_name(view)
        if stage is None:
            return NO_METADATA
        if self.final_stage in (None, stage):
            return {"stage": stage}
        return {"stage": stage, INTERMEDIATE: True}


def _example(
    response: str | Answer, types: Sequence[ClassificationType | Mapping[str, Any]]
) -> tuple[Answer, View]:
    """Return an answer, and the view of a session in which the model gave it to a first message."""
    answer = Answer(parts=(Text(response),)) if isinstance(response, str) else response
    profile = Profile(types=checked_types(map(to_type, types)))
    return answer, _first_view(answer, profile)


def _first_view(answer: Answer, profile: Profile) -> View:
    asked = Message(session_id="example", sender=Sender("user"), parts=(Text("An example."),))
    said = Message(session_id="example", sender=Sender("agent", "assistant"), parts=answer.parts)
    return View(message=asked, record=(asked, said), state={}, calls=1, profile=profile, tools=profile.tools)


class Classifier(abc.ABC):
    """The reading half of a protocol: what an answer means, in outcomes."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Whoever overrides `partial` alone is asked for it: what follows the inherited one would show something else."""
        super().__init_subclass__(**options)
        if "partial" in vars(cls) and "growth" not in vars(cls):
            cls.growth = Classifier.growth  # type: ignore[method-assign]

    @abc.abstractmethod
    def read(self, answer: Answer, view: View) -> Sequence[Outcome]:
        """Return what the answer means. Native calls of the answer are read by the core before this.

        Raises:
            AnswerError: the same as returning `[Fail(error)]`.
        """

    def validate_response(
        self, response: str | Answer, types: Sequence[ClassificationType | Mapping[str, Any]] = ()
    ) -> bool:
        """Return True if an answer has the form that this classifier reads, for an agent with these types.

        `read` gives the outcomes of the answer, or raises the reason why it cannot be read.
        """
        try:
            outcomes = self.read(*_example(response, types))
        except AnswerError:
            return False
        return not any(isinstance(outcome, Fail) for outcome in outcomes)

    def classify(
        self, response: str | Answer, types: Sequence[ClassificationType | Mapping[str, Any]] = ()
    ) -> str:
        """Return the name of the type that an answer has, for an agent with these types.

        The name is that of the answer's event, reply or route; `TOOL_INVOCATION` for calls of tools, and `DIRECT_RESPONSE`
        for text without a type.

        Raises:
            AnswerError: The answer cannot be read.
        """
        outcomes = self.read(*_example(response, types))
        for outcome in outcomes:
            if isinstance(outcome, Fail):
                raise outcome.error
            if isinstance(outcome, Event):
                return outcome.name
            if isinstance(outcome, Route):
                return outcome.action
            if isinstance(outcome, Say) and outcome.message_type is not None:
                return outcome.message_type
        return (
            "TOOL_INVOCATION" if any(isinstance(each, CallTools) for each in outcomes) else "DIRECT_RESPONSE"
        )

    def partial(self, text: str) -> str | None:
        """The part of a growing answer that may be shown; None shows nothing yet.

        Asked at each piece of a short text, and whenever a longer one has grown by 1/64; see `growth`.
        """
        return None

    def growth(self) -> Growth:
        """One growing answer, of which it says what may be shown.

        Override it where pieces can be shown without another look at the whole text, as `follow_strings` does for a
        member of a JSON object, and `follow_prose` for plain text.
        """
        return Growth(self.partial)

    def shortfall(self, message_type: str | None) -> str | None:
        """Return what is to be told beside a turn's last reply of this type that is less than what was asked, e.g. `partial`.

        None where it is all of it. Whoever has the agent as a tool reads it; see `Reply.message_type`.
        """
        return None


class Protocol(PromptTemplate, Classifier):
    """A prompt template and a classifier that belong together, written as one class or made by `pair`."""

    max_iterations: int | None = None
    """Maximum number of model calls of a turn; None: the protocol has no limit of its own, so `Limits(model_calls=)` bounds the turn.

    If both are set, the smaller limit counts."""
    roles: Sequence[str] = ()
    """The roles of models that its requests name, beside `default`: keys of an agent's `models`."""
    limit_argument: str = ""
    """Name of the argument that sets `max_iterations`, for error messages; empty: the attribute of the class."""
    reserved_names: ClassVar[frozenset[str]] = frozenset()
    """Names of types that mean something else in this protocol; an instruction with a tool may not have such a name."""
    lookback: int | None = None
    """How many messages from before the turn that runs are looked at in `View.record`; None may look at all of them.

    A long session opens quickly for those that say it, and where the memory allows it. Whoever looks further back all the same
    gets what is there, read from the journal at that moment, while all else waits.
    """

    @staticmethod
    def pair(
        template: PromptTemplate, classifier: Classifier, *, max_iterations: int | None = None
    ) -> "Protocol":
        """Make a protocol of its two halves.

        Raises:
            ConfigurationError: one is not such a half, or the template has no `examples` by which to tell that they fit.
        """
        return _Pair(template, classifier, max_iterations=max_iterations)

    @property
    def halves(self) -> tuple[object, object]:
        """The template and the classifier, to name them."""
        return self, self

    def script(self, text: str, call: ToolCall | None = None) -> Sequence[str]:
        """Return what a scripted model answers, call by call, until it has said this text; by default the text alone.

        `call` is for protocols in which a model with tools does not come to an end without calling one.
        """
        return (text,)

    def check_fit(self, profile: Profile) -> None:
        """Check that the classifier reads the template's `examples` as answers to an agent of this profile.

        Raises:
            ConfigurationError: The classifier does not read an example; the text names both halves, the example and the
                reason. Or a type with a tool has a name that the protocol uses itself.
        """
        for kind in profile.types:
            if kind.tool is not None and kind.name.upper() in self.reserved_names:
                raise ConfigurationError(
                    f"the type {kind.name!r} runs the tool {kind.tool!r}, but {kind.name.upper()} has a meaning of its own in the "
                    f"protocol {self.name!r}: rename the type"
                )
        for example in self.examples:
            if reason := self._misread(example, profile):
                asking, reading = (type(half).__name__ for half in self.halves)
                raise ConfigurationError(
                    f"template {asking} and classifier {reading} do not fit together: {reading} cannot read the "
                    f"example {example!r:.200} of {asking}: {reason}"
                )

    def _misread(self, example: str, profile: Profile) -> str | None:
        """Why an answer cannot be read; None for one that can."""
        answer = Answer(parts=(Text(example),))
        try:
            outcomes = self.read(answer, _first_view(answer, profile))
        except AnswerError as error:
            return error.reason
        except Exception as error:  # noqa: BLE001 - a half of the developer's: whatever it raises, it does not fit
            return repr(error)
        failed = next((outcome.error for outcome in outcomes if isinstance(outcome, Fail)), None)
        return None if failed is None else failed.reason

    def with_output(self, output: Any) -> "Protocol":
        """The same protocol, its turns ending with a value of one form: a type, or a form as a dict.

        Wherever a turn may end. A protocol of several stages overrides it, where only the last may have the form.

        Raises:
            ConfigurationError: JSON Schema cannot say it, or it is no JSON Schema.
        """
        return WithOutput(self, output)


class _Pair(Protocol):
    """Two halves that were written apart."""

    def __init__(
        self, template: PromptTemplate, classifier: Classifier, *, max_iterations: int | None
    ) -> None:
        if not isinstance(template, PromptTemplate):
            raise ConfigurationError(f"template= must be a PromptTemplate, got {template!r}")
        if not isinstance(classifier, Classifier):
            raise ConfigurationError(f"classifier= must be a Classifier, got {classifier!r}")
        asking = type(template).__name__
        if not template.examples:
            raise ConfigurationError(
                f"template {asking} has no examples=: give an answer as it asks for one, by which to tell that "
                f"{type(classifier).__name__} reads what it asks for"
            )
        self._template, self._classifier = template, classifier
        # An instance stands for its template, whose class has these.
        self.name = template.name  # type: ignore[misc]
        self.template = template.template  # type: ignore[misc]
        self.assistant_template = template.assistant_template  # type: ignore[misc]
        self.user_template = template.user_template  # type: ignore[misc]
        self.examples = template.examples  # type: ignore[misc]
        self.stages = template.stages  # type: ignore[misc]
        self.final_stage = template.final_stage  # type: ignore[misc]
        self.max_iterations = max_iterations
        self.limit_argument = "" if max_iterations is None else "Protocol.pair(max_iterations=...)"

    @property
    def halves(self) -> tuple[object, object]:
        return self._template, self._classifier

    def request(self, view: View) -> Request:
        return self._template.request(view)

    def stage_name(self, view: View) -> str | None:
        return self._template.stage_name(view)

    def read(self, answer: Answer, view: View) -> Sequence[Outcome]:
        return self._classifier.read(answer, view)

    def partial(self, text: str) -> str | None:
        return self._classifier.partial(text)

    def growth(self) -> Growth:
        return self._classifier.growth()

    def shortfall(self, message_type: str | None) -> str | None:
        return self._classifier.shortfall(message_type)


# --- structured answers ---------------------------------------------------------------------


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
        self.assistant_template = protocol.assistant_template  # type: ignore[misc]
        self.user_template = protocol.user_template  # type: ignore[misc]
        self.stages = protocol.stages  # type: ignore[misc]
        self.final_stage = protocol.final_stage  # type: ignore[misc]
        self.max_iterations = protocol.max_iterations
        self.limit_argument = protocol.limit_argument or f"{type(protocol).__name__}.max_iterations"
        self.roles = protocol.roles
        self.lookback = protocol.lookback
        self._hint = f"Your final answer must be JSON of this form: {self.output.form}"
        self._format = self.output.response_format

    def request(self, view: View) -> Request:
        request = self.inner.request(view)
        tail = f"{request.tail}\n\n{self._hint}" if request.tail else self._hint
        return attrs.evolve(request, tail=tail, response_format=request.response_format or self._format)

    def read(self, answer: Answer, view: View) -> Sequence[Outcome]:
        try:
            outcomes = self.inner.read(answer, view)
        except ParseError as error:
            if not self._may_be_value(error):
                raise
            # A provider that keeps to the form leaves no room for the inner protocol's own, and a model that
            # does not may leave out the words beside the value.
            value = self._found_in(answer.text)
            return [Say(text=visible(answer.text), data=self.output.convert(value))]
        if any(isinstance(outcome, CallTools | Continue) for outcome in outcomes):
            return outcomes
        return [self._valued(said) if isinstance(said, Say) else said for said in outcomes]

    def stage_name(self, view: View) -> str | None:
        return self.inner.stage_name(view)

    def partial(self, text: str) -> str | None:
        return self.inner.partial(text)

    def growth(self) -> Growth:
        return self.inner.growth()

    def script(self, text: str, call: ToolCall | None = None) -> Sequence[str]:
        return self.inner.script(text, call)

    def shortfall(self, message_type: str | None) -> str | None:
        return self.inner.shortfall(message_type)

    def _may_be_value(self, error: ParseError) -> bool:
        """Return True if an answer that the inner protocol cannot read may be the value alone."""
        return True

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
