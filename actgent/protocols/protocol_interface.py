"""The interface between an agent and a model: a `Protocol` combines a `PromptTemplate` and a `Classifier`.

The template writes the request, the classifier reads the answer. A protocol is pure and synchronous, keeps no
data of a session, and is shared by all sessions. It reports the meaning of an answer as *outcomes*, which the
core dispatches through one table. Outcomes without `CallTools` or `Continue` end the turn.
"""

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from actgent.errors import AnswerError, ConfigurationError, ParseError, did_you_mean_or_list
from actgent.errors.text_escaping import quoted, shown
from actgent.llm.model_interface import ModelResponse, ResponseFormat
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
from actgent.structured_output.answer_type_schemas import is_json_schema
from actgent.structured_output.extract_json import extract, loads, remove_thinking
from actgent.structured_output.output_type import output_of
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fast_attrs_constructors import fast_constructor, fast_init
from actgent.support.unknown_name_hints import lists_arguments
from actgent.tools import schemas

from .partial_answers import PartialAnswer

_JSON_STARTS = ("{", "[", "`")

# --- types of answers ----------------------------------------------------------


MESSAGE_TYPE = "messageType"
"""Key in an answer whose value is the name of the answer's type."""


def read_schema(schema: object, prefix: str = "") -> Mapping[str, Any] | None:
    """Convert the value of `schema=` to a mapping. Text is parsed as JSON; None and empty text mean no schema.

    `prefix` is the beginning of error texts.
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
                f"{prefix}schema={quoted(str(schema))} is not JSON ({error.reason}): pass a dict, or the JSON text of an object"
            ) from None
    if not isinstance(schema, Mapping):
        raise ConfigurationError(
            f"{prefix}schema={shown(schema)} must be an object: pass a dict, or the JSON text of an object"
        )
    return schema


def _type_schema(schema: object) -> Mapping[str, Any]:
    return read_schema(schema) or {}


@lists_arguments
@attrs.frozen(repr=False)
class Instruction(FieldRepr):
    """A named type of model answer, as the developer describes it."""

    name: str
    """Name that the model writes in the field for the type of its answer; unique among the answer types that the agent allows."""
    description: str = ""
    """Description of when the model should answer with this type."""
    schema: Mapping[str, Any] | None = attrs.field(default=None, converter=read_schema)
    """JSON Schema of the content, or a template such as `{"field": "<meaning>"}`, as a dict or JSON text; None accepts any content."""
    tool: str | None = None
    """Name of the tool that runs with the validated answer; the model cannot call this tool in another way.

    None emits an event instead.
    """


@lists_arguments
@attrs.frozen(repr=False)
class ClassificationType(FieldRepr):
    """A type of model answer, as prompts and classifiers use it."""

    name: str
    """Name that the model writes as the type of its answer; unique among the agent's types."""
    description: str = ""
    """Description of when the model should answer with this type."""
    schema: Mapping[str, Any] = attrs.field(factory=dict, converter=_type_schema)
    """JSON Schema or template of the answer's content, as a dict or JSON text; empty accepts any content.

    A schema with a property `messageType` describes the whole answer instead.
    """
    tool: str | None = None
    """Name of the tool that runs with the validated answer; None emits an event instead."""


_FIELD_BY_KEY: Mapping[str, str] = {
    "name": "name",
    "instructionName": "name",
    "description": "description",
    "schema": "schema",
    "schemaTemplate": "schema",
    "tool": "tool",
}


def _parse_fields(value: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Parse an instruction or an answer type that is written as a dict, and return its fields. Error texts begin with `label`."""
    fields: dict[str, Any] = {}
    for key, content in value.items():
        field = _FIELD_BY_KEY.get(key)
        if field is None:
            raise ConfigurationError(
                f"{label} {value!r:.200} has an unknown key: {did_you_mean_or_list(str(key), list(_FIELD_BY_KEY))}"
            )
        if field in fields:
            raise ConfigurationError(
                f"{label} {value!r:.200} has the field {field!r} twice: remove one of the keys"
            )
        fields[field] = content
    if not isinstance(fields.get("name"), str):
        raise ConfigurationError(f'{label} {value!r:.200} has no name: add "name": "..."')
    if "schema" in fields:
        fields["schema"] = read_schema(fields["schema"], f"{label} {shown(fields['name'])}: ")
    return fields


def to_instruction(value: object) -> Any:
    """Convert a name or a dict to an `Instruction`; return any other value unchanged."""
    if isinstance(value, str):
        return Instruction(value)
    return Instruction(**_parse_fields(value, "instruction")) if isinstance(value, Mapping) else value


def to_type(value: object) -> Any:
    """Convert a dict to a `ClassificationType`; return any other value unchanged."""
    return ClassificationType(**_parse_fields(value, "type")) if isinstance(value, Mapping) else value


def types_from(instructions: Sequence[Instruction]) -> tuple[ClassificationType, ...]:
    """Convert instructions to the classification types by which the model's answers are matched, in the same order.

    Raises:
        ConfigurationError: A name is empty or used twice, or a schema is invalid.
    """
    types = validate_types(
        ClassificationType(each.name, each.description, each.schema or {}, each.tool) for each in instructions
    )
    if len(types) < len(instructions):
        names = [each.name for each in instructions]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"two instructions are named {twice!r}: remove or rename one of them")
    return types


def validate_types(types: Iterable[ClassificationType]) -> tuple[ClassificationType, ...]:
    """Validate the classification types of one agent and return them without duplicates.

    Raises:
        ConfigurationError: A name is empty, or two different types have the same name (ignoring case). Or a schema is invalid, or
            requires the name of another type as its `messageType`.
    """
    known: dict[str, ClassificationType] = {}
    for kind in types:
        key = " ".join(kind.name.split()).casefold()
        if not key:
            raise ConfigurationError(f"{kind!r:.200} has an empty name: give each type a unique name")
        if known.setdefault(key, kind) != kind:
            raise ConfigurationError(
                f"the types {known[key].name!r} and {kind.name!r} have the same name (ignoring case), "
                "but an answer is matched by its type name: rename one of them"
            )
        if is_json_schema(kind.schema):
            schemas.compile_schema(kind.schema, owner=f"instruction {kind.name!r}")
    for kind in known.values():
        _check_message_type(kind, known)
    return tuple(known.values())


def describes_whole_answer(schema: Mapping[str, Any]) -> bool:
    """Return True if a schema describes the whole answer including `messageType`, not only its content."""
    return (
        MESSAGE_TYPE in (schema.get("properties") or ()) if is_json_schema(schema) else MESSAGE_TYPE in schema
    )


_KEYWORDS_WITH_HIDDEN_PROPERTIES = (
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
    """Return the property names of an object schema; None if the schema does not list all properties."""
    if not is_json_schema(schema):
        return frozenset(schema)
    if "properties" not in schema or any(word in schema for word in _KEYWORDS_WITH_HIDDEN_PROPERTIES):
        return None
    return frozenset(schema["properties"])


def _check_message_type(kind: ClassificationType, known: Mapping[str, ClassificationType]) -> None:
    """Check that the schema of a whole answer does not require a `messageType` other than the name of its type."""
    if not describes_whole_answer(kind.schema):
        return
    if is_json_schema(kind.schema):
        member = kind.schema["properties"][MESSAGE_TYPE]
        required = member.get("const", kind.name) if isinstance(member, Mapping) else kind.name
        is_wrong = required != kind.name
    else:
        required = kind.schema[MESSAGE_TYPE]
        other = known.get(required.casefold()) if isinstance(required, str) else None
        is_wrong = other is not None and other is not kind
    if is_wrong:
        raise ConfigurationError(
            f"the schema of type {kind.name!r} must not require the messageType {required!r}: write {kind.name!r} there, or omit messageType"
        )


# --- input and output of a protocol ---------------------------------------------------


@attrs.frozen(kw_only=True, repr=False)
class Profile(FieldRepr):
    """Description of an agent, for prompt templates."""

    name: str = "agent"
    """Name of the agent."""
    role: str = ""
    """Role of the agent, e.g. `a travel agent`; empty if not set."""
    goal: str = ""
    """Goal of the agent; empty if not set."""
    capabilities: str = ""
    """Capabilities of the agent, as text; empty if not set."""
    instructions: Sequence[Instruction] = ()
    """Types of answers that the developer passed as `instructions=`."""
    types: Sequence[ClassificationType] = ()
    """Classification types of the agent, from `instructions` and from `types`."""
    tools: Sequence[ToolSpec] = ()
    """Tools at the creation of the agent. The system prompt uses these, so that it never changes; see `TurnView.tools`."""
    body: str = ""
    """Further text of the system prompt, e.g. the body of brain.md."""


@attrs.define(kw_only=True, eq=False, repr=False)
class TurnView(FieldRepr):
    """Read-only view of a session for a protocol.

    One view is used for one model call of a turn: to render the request and to read the answer. `state` and `calls` are
    updated in between.
    """

    message: Message
    """The message that the model call answers."""
    record: Sequence[Message]
    """Messages of the session, oldest first.
    While a request is rendered, the last one is `message`; only notes of the kind `system` may follow it. While an answer
    is read, the last one is the answer.
    """
    state: Mapping[str, Any]
    """State of the session when the answer arrived.

    After a restart a recorded answer is read again with the same state, so reading must depend only on the
    view and the answer.
    """
    stage: str | None = None
    """Stage of the protocol in which `message` was added; None at the first model call of the turn."""
    calls: int = 0
    """Number of model calls of this turn so far, including the call whose answer is being read."""
    repairs: int = 0
    """Number of consecutive invalid answers so far."""
    profile: Profile
    """Profile of the agent."""
    tools: Sequence[ToolSpec] = ()
    """Tools that this request offers to the model; an access rule may still reject some of the calls."""


@attrs.frozen(kw_only=True, repr=False)
class Request(FieldRepr):
    """Additions of a protocol to the conversation for one model call, and the model to call."""

    tail: str = ""
    """Text at the end of the prompt, for this call only."""
    model: str = "default"
    """Role of the model to call: a key of the agent's `models`."""
    response_format: ResponseFormat | None = None
    """Output format that the provider enforces; None allows any text."""
    is_plan: bool = False
    """True if the answer is a plan. The trace then has a `plan` span around the model call."""


PLAIN_REQUEST = Request()

# --- outcomes -------------------------------------------------------------------------------


@fast_init
@attrs.frozen(kw_only=True, repr=False)
class SendReply(FieldRepr):
    """Outcome of an answer: send a reply to the user."""

    text: str
    """Reply text for the user."""
    data: Any = None
    """Value of the agent's `output=` type; None without `output=`."""
    message_type: str | None = None
    """Type of the answer as the protocol names it; None if the protocol has no types."""
    reasoning: Mapping[str, Any] | None = None
    """The model's explanations of the answer, as the protocol names them; None if the model gave none."""


make_say = fast_constructor(SendReply)


@attrs.frozen(repr=False)
class CallTools(FieldRepr):
    """Outcome: run tool calls. They start in order, and their results are the next message of the turn."""

    calls: Sequence[ToolCall]
    """Tool calls in the order of the answer."""
    stage: str | None = None
    """Stage in which the model gets the results; None is the first stage of the protocol."""


@attrs.frozen(repr=False)
class UpdateState(FieldRepr):
    """Outcome: change the state of the session. Changes are dispatched before all other outcomes of the answer."""

    action: Callable[[Mapping[str, Any]], Any]
    """Function of the state that returns changes: a pair `(key, value)`, a list of pairs, or None."""


@attrs.frozen(repr=False)
class Continue(FieldRepr):
    """Outcome: call the model again in a stage, with a note after the conversation."""

    stage: str | None
    """Stage of the next model call; None is the first stage of the protocol."""
    note: str = ""
    """Text for the model after the conversation; empty adds no text."""


@attrs.frozen(repr=False)
class Finish(FieldRepr):
    """Outcome: end the turn without another model call."""


@attrs.frozen(repr=False)
class Fail(FieldRepr):
    """Outcome of an answer: reject the answer.

    After a `ParseError`, the model is called again with the reason, at most `Limits.output_retries` times. Other errors fail
    the turn.
    """

    error: AnswerError
    """Error that describes the problem of the answer."""


Outcome = SendReply | Event | Route | CallTools | UpdateState | Continue | Finish | Fail


# --- the two halves of a protocol -----------------------------------------------------------


class PromptTemplate(abc.ABC):
    """The part of a protocol that writes requests: prompt texts, and additions to each model call.

    The texts are jinja2 templates of the developer, rendered by a `PromptManager`. The system prompt is rendered once for an
    agent, the assistant prompt once for a session, and the user prompt for each pass (one model call). So the beginning of the
    requests stays the same, and the prompt cache of the provider can be used.
    """

    name: ClassVar[str]
    template: ClassVar[str]
    """Template of the system prompt, with the variables `profile` and `examples`; rendered once for an agent.

    A template that uses `session`, `state` or `memory` is rendered for each session, and again when these
    values change.
    """
    assistant_template: ClassVar[str] = ""
    """Template of a message with the role `assistant` after the system prompt, before the remembered conversation.

    Variables are `profile`, `examples`, `session` (`id`, `owner`, `description`), `state` and `memory`. It is
    rendered once for a session, and again when these values change.
    """
    user_template: ClassVar[str] = ""
    """Template of the text after the conversation, rendered for each model call and not remembered.

    Variables are those of `assistant_template` and `message` (the text to answer), `stage`, `calls` and
    `repairs`.
    """
    examples: ClassVar[Sequence[str]] = ()
    """Example model answers to this template. An agent is rejected if its classifier, which reads answers, cannot read them all."""

    stages: ClassVar[Sequence[str]] = ()
    """Names of the stages, for `Agent.on_query(stage=)`; empty if the protocol has no stages."""
    final_stage: ClassVar[str | None] = None
    """Stage whose answers are for the user. Answers of other stages are marked as intermediate. None marks no answer
    as intermediate.
    """

    def request(self, view: TurnView) -> Request:
        """Return the additions to the conversation for the next model call. The default adds nothing."""
        return PLAIN_REQUEST

    def stage_name(self, view: TurnView) -> str | None:
        """Return the stage of the next model call (one of `stages`); None if the protocol has no stages."""
        return view.stage

    def answer_metadata(self, view: TurnView) -> Mapping[str, Any]:
        """Return metadata for the message of the next answer: its stage, and a mark if the stage is not the last one.

        Without stages, the result is empty.
        """
        stage = self.stage_name(view)
        if stage is None:
            return NO_METADATA
        if self.final_stage in (None, stage):
            return {"stage": stage}
        return {"stage": stage, INTERMEDIATE: True}


def _example(
    response: str | ModelResponse, types: Sequence[ClassificationType | Mapping[str, Any]]
) -> tuple[ModelResponse, TurnView]:
    """Convert an example answer to a `ModelResponse`. Also return a view of a new session that contains this answer."""
    answer = ModelResponse(parts=(Text(response),)) if isinstance(response, str) else response
    profile = Profile(types=validate_types(map(to_type, types)))
    return answer, _first_view(answer, profile)


def _first_view(answer: ModelResponse, profile: Profile) -> TurnView:
    question = Message(session_id="example", sender=Sender("user"), parts=(Text("An example."),))
    reply = Message(session_id="example", sender=Sender("agent", "assistant"), parts=answer.parts)
    return TurnView(
        message=question, record=(question, reply), state={}, calls=1, profile=profile, tools=profile.tools
    )


class Classifier(abc.ABC):
    """The part of a protocol that reads answers: it returns their meaning as outcomes."""

    def __init_subclass__(cls, **options: Any) -> None:
        """If a subclass overrides only `partial`, restore the default `partial_answer`, because an inherited one ignores `partial`."""
        super().__init_subclass__(**options)
        if "partial" in vars(cls) and "partial_answer" not in vars(cls):
            cls.partial_answer = Classifier.partial_answer  # type: ignore[method-assign]

    @abc.abstractmethod
    def read(self, answer: ModelResponse, view: TurnView) -> Sequence[Outcome]:
        """Return the outcomes of an answer. The core has already handled native tool calls of the answer.

        Raises:
            AnswerError: The answer cannot be read; equivalent to returning `[Fail(error)]`.
        """

    def validate_response(
        self, response: str | ModelResponse, types: Sequence[ClassificationType | Mapping[str, Any]] = ()
    ) -> bool:
        """Return True if this classifier can parse an answer of an agent with these types.

        `read` returns the outcomes of the answer, or raises the reason why it cannot be read.
        """
        try:
            outcomes = self.read(*_example(response, types))
        except AnswerError:
            return False
        return not any(isinstance(outcome, Fail) for outcome in outcomes)

    def classify(
        self, response: str | ModelResponse, types: Sequence[ClassificationType | Mapping[str, Any]] = ()
    ) -> str:
        """Return the type name of an answer, for an agent with these types.

        The name is that of the answer's event, reply or route, `TOOL_INVOCATION` for tool calls, and
        `DIRECT_RESPONSE` for text without a type.
        """
        outcomes = self.read(*_example(response, types))
        for outcome in outcomes:
            if isinstance(outcome, Fail):
                raise outcome.error
            if isinstance(outcome, Event):
                return outcome.name
            if isinstance(outcome, Route):
                return outcome.action
            if isinstance(outcome, SendReply) and outcome.message_type is not None:
                return outcome.message_type
        return (
            "TOOL_INVOCATION" if any(isinstance(each, CallTools) for each in outcomes) else "DIRECT_RESPONSE"
        )

    def partial(self, text: str) -> str | None:
        """Return the part of an incomplete answer that the user may read; None if the user may read no text yet.

        It is called for each chunk while the text is short, and later whenever the text has grown by 1/64.
        """
        return None

    def partial_answer(self) -> PartialAnswer:
        """Create the filter for one streamed answer, which selects the text to show to the user.

        Override it if chunks can be shown without reading the whole text again. `follow_strings` does so for one member of a
        JSON object, and `follow_prose` for plain text.
        """
        return PartialAnswer(self.partial)

    def shortfall(self, message_type: str | None) -> str | None:
        """Return a status such as `partial` if a turn did not fully succeed; None otherwise.

        The type of the turn's last reply decides. An agent that called this agent as a tool receives the
        status with the result.
        """
        return None


class Protocol(PromptTemplate, Classifier):
    """A prompt template and its matching classifier, written as one class or combined with `pair`."""

    max_iterations: int | None = None
    """Maximum number of model calls in a turn; None if only `Limits(model_calls=)` limits the turn.

    If both limits are set, the smaller limit applies.
    """
    roles: Sequence[str] = ()
    """Roles of models that this protocol calls in addition to `default`. Roles are keys of an agent's `models`."""
    limit_argument: str = ""
    """Name of the argument that sets `max_iterations`, for error texts; empty means the class attribute."""
    reserved_names: ClassVar[frozenset[str]] = frozenset()
    """Type names with a special meaning in this protocol; an instruction with a tool must have another name."""
    lookback: int | None = None
    """Number of messages before the running turn that the protocol reads in `TurnView.record`; None reads all.

    With a limited lookback, long sessions load quickly if the memory has one too. Reading earlier messages
    still works, but loads them from the journal synchronously, which blocks the event loop.
    """

    @staticmethod
    def pair(
        template: PromptTemplate, classifier: Classifier, *, max_iterations: int | None = None
    ) -> "Protocol":
        """Combine a template and a classifier into a protocol.

        Raises:
            ConfigurationError: An argument has the wrong type, or the template has no `examples` to check the
                combination with.
        """
        return _Pair(template, classifier, max_iterations=max_iterations)

    @property
    def halves(self) -> tuple[object, object]:
        """The template, which writes prompts, and the classifier, which parses answers.

        If one class implements both, both values are the protocol itself.
        """
        return self, self

    def script(self, text: str, call: ToolCall | None = None) -> Sequence[str]:
        """Return the model answers, one per model call, with which this protocol produces a reply with the text `text`.

        Tests give them to a scripted model. The default is the text alone. `call` is a tool call to include
        in protocols in which a model with tools cannot finish without calling one.
        """
        return (text,)

    def check_fit(self, profile: Profile) -> None:
        """Check that the classifier can read the template's `examples` for an agent with this profile.

        Raises:
            ConfigurationError: The classifier cannot read an example (the text names both classes, the
                example and the reason), or a type with a tool has a reserved name.
        """
        for kind in profile.types:
            if kind.tool is not None and kind.name.upper() in self.reserved_names:
                raise ConfigurationError(
                    f"the type {kind.name!r} runs the tool {kind.tool!r}, but {kind.name.upper()} is reserved by the "
                    f"protocol {self.name!r}: rename the type"
                )
        for example in self.examples:
            if reason := self._misread(example, profile):
                template, classifier = (type(half).__name__ for half in self.halves)
                raise ConfigurationError(
                    f"template {template} and classifier {classifier} do not fit together: {classifier} cannot read the "
                    f"example {example!r:.200} of {template}: {reason}"
                )

    def _misread(self, example: str, profile: Profile) -> str | None:
        """Return the reason why the protocol cannot parse an example answer; None if it can. No exception is raised."""
        answer = ModelResponse(parts=(Text(example),))
        try:
            outcomes = self.read(answer, _first_view(answer, profile))
        except AnswerError as error:
            return error.reason
        except Exception as error:  # noqa: BLE001 - user code: any exception means that the parts do not fit
            return repr(error)
        failed = next((outcome.error for outcome in outcomes if isinstance(outcome, Fail)), None)
        return None if failed is None else failed.reason

    def with_output(self, output: Any) -> "Protocol":
        """Return a copy of this protocol whose turns end with a value of the type or JSON Schema `output`.

        A protocol with several stages overrides it if only the last stage may return the value.

        Raises:
            ConfigurationError: The type cannot be expressed in JSON Schema, or the dict is no JSON Schema.
        """
        return WithOutput(self, output)


class _Pair(Protocol):
    """A protocol combined from a separate template and classifier; made by `Protocol.pair`."""

    def __init__(
        self, template: PromptTemplate, classifier: Classifier, *, max_iterations: int | None
    ) -> None:
        if not isinstance(template, PromptTemplate):
            raise ConfigurationError(f"template= must be a PromptTemplate, not {template!r}")
        if not isinstance(classifier, Classifier):
            raise ConfigurationError(f"classifier= must be a Classifier, not {classifier!r}")
        template_name = type(template).__name__
        if not template.examples:
            raise ConfigurationError(
                f"template {template_name} has no examples=: add an example answer, to check that "
                f"{type(classifier).__name__} can read the answers that the template asks for"
            )
        self._template, self._classifier = template, classifier
        # The template declares these as class attributes; a pair has them for each instance.
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

    def request(self, view: TurnView) -> Request:
        return self._template.request(view)

    def stage_name(self, view: TurnView) -> str | None:
        return self._template.stage_name(view)

    def read(self, answer: ModelResponse, view: TurnView) -> Sequence[Outcome]:
        return self._classifier.read(answer, view)

    def partial(self, text: str) -> str | None:
        return self._classifier.partial(text)

    def partial_answer(self) -> PartialAnswer:
        return self._classifier.partial_answer()

    def shortfall(self, message_type: str | None) -> str | None:
        return self._classifier.shortfall(message_type)


# --- structured answers ---------------------------------------------------------------------


class WithOutput(Protocol):
    """A protocol whose turns end with a value of the type `output`, which the reply contains as `SendReply.data`.

    The model gets the schema as structured output if the provider supports it, else in the prompt. The value is
    searched in the data and the text of the inner protocol's reply, and in the whole answer.
    """

    def __init__(self, protocol: Protocol, output: Any) -> None:
        self.inner = protocol
        self.output = output_of(output)
        # The inner protocol declares these as class attributes; this class has them for each instance.
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
        self._hint = f"Your final answer must be JSON of this form: {self.output.schema_text}"
        self._format = self.output.response_format

    def request(self, view: TurnView) -> Request:
        request = self.inner.request(view)
        tail = f"{request.tail}\n\n{self._hint}" if request.tail else self._hint
        return attrs.evolve(request, tail=tail, response_format=request.response_format or self._format)

    def read(self, answer: ModelResponse, view: TurnView) -> Sequence[Outcome]:
        try:
            outcomes = self.inner.read(answer, view)
        except ParseError as error:
            if not self._may_be_value(error):
                raise
            # A provider that enforces the schema leaves no room for the inner protocol's own format, and a model
            # that does not may omit the text around the value.
            value = self._extract_value(answer.text)
            return [SendReply(text=remove_thinking(answer.text), data=self.output.convert(value))]
        if any(isinstance(outcome, CallTools | Continue) for outcome in outcomes):
            return outcomes
        return [self._add_output_value(each) if isinstance(each, SendReply) else each for each in outcomes]

    def stage_name(self, view: TurnView) -> str | None:
        return self.inner.stage_name(view)

    def partial(self, text: str) -> str | None:
        return self.inner.partial(text)

    def partial_answer(self) -> PartialAnswer:
        return self.inner.partial_answer()

    def script(self, text: str, call: ToolCall | None = None) -> Sequence[str]:
        return self.inner.script(text, call)

    def shortfall(self, message_type: str | None) -> str | None:
        return self.inner.shortfall(message_type)

    def _may_be_value(self, error: ParseError) -> bool:
        """Return True if an answer that the inner protocol rejects may be the value itself. The default is True for every answer."""
        return True

    def _add_output_value(self, reply: SendReply) -> SendReply:
        """Return a copy of a reply. If the reply contains the `output=` value, this value is the data of the copy.

        Raises:
            ParseError: The reply contains no value that fits the schema; the text names the position.
        """
        fits = reply.data is not None and self.output.check(reply.data) is None
        value = reply.data if fits else self._extract_value_or_text(reply.text)
        return attrs.evolve(reply, data=self.output.convert(value))

    def _extract_value(self, text: str) -> Any:
        """Return the JSON value in an answer text that fits the schema."""
        return self._matching_values(extract(text, self._reason))[0]

    def _extract_value_or_text(self, text: str) -> Any:
        """Return the JSON value in an answer text that fits the schema, or the text itself if the schema accepts text."""
        try:
            return self._extract_value(text)
        except ParseError as error:
            cut = error.reason.startswith("truncated") and text.lstrip().startswith(_JSON_STARTS)
            if not cut and self.output.check(text) is None:
                return text
            raise

    def _reason(self, value: Any) -> str | None:
        return None if self._matching_values(value) else self.output.check(value)

    def _matching_values(self, value: Any) -> list[Any]:
        """Return the value if it matches the schema, otherwise its nested members that match.

        The value may be nested, because the wrapped protocol may ask for an object around it.
        """
        if self.output.check(value) is None:
            return [value]
        members = value.values() if isinstance(value, dict) else ()
        matching = [
            found for member in members if isinstance(member, dict) for found in self._matching_values(member)
        ]
        return matching if len(matching) == 1 else []
