"""Rendering of prompts from the developer's templates, with data of agent, session and model call."""

import functools
import json
import re
import typing
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.memory.history_slice import followed_by, preceded_by
from actgent.memory.memory_interface import ModelView
from actgent.memory.system_tag_escaping import neutralize
from actgent.messages import ChatMessage, Sender, Text, ToolSpec
from actgent.structured_output.answer_type_schemas import is_json_schema
from actgent.support.attrs_class_repr import FieldRepr

from .protocol_interface import (
    MESSAGE_TYPE,
    ClassificationType,
    Profile,
    PromptTemplate,
    Request,
    TurnView,
    describes_whole_answer,
)

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_FILE_NAME = "<template>"  # what jinja2 calls a template that comes from a string
_TEMPLATE_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)

# Parts that the system prompts of several protocols share.
WHO = """\
{% if profile.role.lower().startswith("you are ") %}
Your name is {{ profile.name }}. {{ profile.role }}
{% else %}
You are {{ profile.name }}{% if profile.role %}, {{ profile.role }}{% endif %}{% if not profile.role.endswith((".", "!", "?")) %}.{% endif %}

{% endif %}
{% if profile.goal.lower().startswith("your goal") %}
{{ profile.goal }}
{% elif profile.goal %}
Your goal: {{ profile.goal }}
{% endif %}
{% if profile.capabilities %}
What you can do: {{ profile.capabilities }}
{% endif %}
{% if profile.body %}

{{ profile.body }}
{% endif %}
"""

TYPES = """\
{% for type in profile.types %}
- {{ type.name }}{% if type.description %}: {{ type.description }}{% endif %}

{% if type.schema %}
{{ type.schema | json }}
{% endif %}
{% endfor %}
"""
"""List of the classification types with the schema of their content; `"<...>"` in a schema is a placeholder for a value."""

NAMED_TYPES = """\
{% for type in profile.types %}
- {{ type.name }}{% if type.description %}: {{ type.description }}{% endif %}

{% if type.schema %}
{{ type | answer_form }}
{% endif %}
{% endfor %}
"""
"""List of the classification types with the schema of the whole answer, including the type name."""


def _json(value: Any, indent: int | None = None) -> str:
    """Encode a value as JSON text for a prompt.

    The `tojson` filter of jinja2 is not used, because it escapes `<`, `>`, `&` and `'` for HTML.
    """
    return json.dumps(value, ensure_ascii=False, default=dict, indent=indent)


def answer_form(kind: ClassificationType) -> str:
    """Return the JSON Schema of a whole answer of a type as text: `messageType` with the type's name, and the content."""
    if not describes_whole_answer(kind.schema):
        return _json({MESSAGE_TYPE: kind.name, "content": kind.schema})
    if is_json_schema(kind.schema):
        members = {**kind.schema["properties"], MESSAGE_TYPE: {"const": kind.name}}
        return _json({**kind.schema, "properties": members})
    return _json({**kind.schema, MESSAGE_TYPE: kind.name})


@functools.cache
def _from_string() -> Callable[[str], Any]:
    """Return the template compiler of a sandboxed jinja2 environment.

    Values come from users and are never parsed as templates.
    """
    from jinja2 import StrictUndefined  # noqa: PLC0415 - imported with the first prompt: reading answers needs no jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False, cache_size=0
    )
    environment.globals.clear()  # lipsum, range, cycler ...: these can produce unbounded output
    environment.filters["json"] = environment.filters["tojson"] = _json
    environment.filters["answer_form"] = answer_form
    return environment.from_string


@functools.lru_cache(maxsize=256)
def _compile_template(template: str) -> Callable[..., str]:
    rendering: Callable[..., str] = _from_string()(template).render
    return rendering


class PromptSession(typing.Protocol):
    """Interface to the session data that prompts use."""

    @property
    def id(self) -> str: ...
    @property
    def owner(self) -> Sender: ...
    @property
    def description(self) -> str: ...
    @property
    def seen_state(self) -> Mapping[str, Any]: ...
    @property
    def state_number(self) -> int: ...


SESSION_NAMES = frozenset({"session", "state", "memory"})
"""Template variables whose values differ between sessions."""
EMPTY_SESSION_FACTS: Mapping[str, Any] = MappingProxyType(
    {"session": {"id": "example", "owner": "user", "description": ""}, "state": {}, "memory": ""}
)
"""Facts of a session without state and memory, to check whether a template can be rendered."""


@functools.lru_cache(maxsize=256)
def session_names_in(template: str) -> frozenset[str]:
    """Return the names in `SESSION_NAMES` that a template uses. If there are any, the template is rendered for each session.

    An invalid template uses none; its error is raised elsewhere.
    """
    if not any(name in template for name in SESSION_NAMES):
        return frozenset()
    from jinja2 import TemplateError, meta  # noqa: PLC0415 - as above
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    try:
        parsed = ImmutableSandboxedEnvironment().parse(template)
    except TemplateError:
        return frozenset()
    return SESSION_NAMES & meta.find_undeclared_variables(parsed)


SessionRenderer = Callable[[Mapping[str, Any]], str]
"""Function that renders a prompt from the facts of a session."""


@attrs.frozen(repr=False)
class _CachedPrompt(FieldRepr):
    """A rendered prompt of a session, with the versions of its inputs."""

    state_number: int
    """Number of state changes at the time of rendering."""
    memory: str
    text: str


CONTINUE_MESSAGE = ChatMessage("user", (Text("Go on."),))
"""Appended if a stage adds no text: some providers treat a conversation that ends with the assistant as a prefill."""
MAX_CACHED_PROMPTS = 1000
"""Maximum number of session prompts that an agent caches. An evicted prompt is rendered again, to identical bytes."""


@attrs.define(eq=False, repr=False)
class PromptManager(FieldRepr):
    """Renders all prompts of one agent from template, profile, session and memory.

    The system prompt is the same for all sessions, and the assistant prompt is the same for all model calls of a session.
    Only the user prompt, at the end, changes with each call. A request therefore begins with the same bytes as the previous
    one (for provider caches), and each call renders only the end.
    """

    template: PromptTemplate
    """Prompt template of the agent's protocol."""
    profile: Profile
    """Profile of the agent, for templates."""
    _system: str | None = attrs.field(default=None, kw_only=True)
    """System prompt of all sessions, if it is more than the rendered template; None before the first rendering.
    """
    live: SessionRenderer | None = attrs.field(default=None, kw_only=True)
    """Function that renders the system prompt of a session; None if all sessions have the same system prompt."""
    assistant: str = attrs.field(kw_only=True)
    """Template of the assistant prompt: the agent's, or by default the protocol's."""
    user: str = attrs.field(kw_only=True)
    """Template of the user prompt: the agent's, or by default the protocol's."""
    _cached: dict[tuple[str, str, Sender], _CachedPrompt] = attrs.field(init=False, factory=dict)
    """Rendered system and assistant prompts of sessions, by kind, session id and owner."""
    _last_tools: Sequence[ToolSpec] | None = attrs.field(init=False, default=None)
    _tools_checksum: int = attrs.field(init=False, default=0)
    """Checksum of the last tools and the assistant template. It is cached, because the tools of an agent rarely
    change.
    """

    @assistant.default
    def _default_assistant(self) -> str:
        return self.template.assistant_template

    @user.default
    def _default_user(self) -> str:
        return self.template.user_template

    def system_prompt(self) -> str:
        """Return the system prompt: the protocol's template rendered with the agent's profile.

        Values of the profile are inserted unchanged and never parsed as templates.

        Raises:
            ConfigurationError: The template is invalid; the text names it and the line.
        """
        if self._system is None:
            facts = EMPTY_SESSION_FACTS if session_names_in(self.template.template) else {}
            self._system = self._render(self.template.template, **facts)
        return self._system

    def render_template(self, facts: Mapping[str, Any]) -> str:
        """Render the protocol's system prompt template with the data of a session in `facts`."""
        return self._render(self.template.template, **facts)

    @property
    def form_template(self) -> str:
        """Part of the protocol's template that describes the answer format; empty if the protocol has no answer format."""
        return self.template.template.removeprefix(WHO)

    def with_form(self, text: str, facts: Mapping[str, Any] = MappingProxyType({})) -> str:
        """Return a system prompt of the developer, followed by the protocol's answer format."""
        form = self._render(self.form_template, **facts) if self.form_template else ""
        return f"{text}\n\n{form}" if form else text

    def session_prompt(self, session: PromptSession, memory: ModelView) -> str:
        """Return the system prompt of a session. A prompt that depends on the session is cached until its inputs change.

        Raises:
            ConfigurationError: The template is invalid; the text names it and the line.
        """
        if (live := self.live) is not None:
            return self._render_cached("system", session, memory, live)
        return self.system_prompt() if self._system is None else self._system

    def assistant_prompt(self, session: PromptSession, memory: ModelView | None = None) -> str:
        """Return the text that follows the system prompt with the role `assistant`; empty without a template for this text.

        Raises:
            ConfigurationError: The template is invalid; the text names it and the line.
        """
        text = self.assistant
        if not text:
            return ""
        return self._render_cached("assistant", session, memory, lambda facts: self._render(text, **facts))

    def _render_cached(
        self, kind: str, session: PromptSession, memory: ModelView | None, render: SessionRenderer
    ) -> str:
        """Return the cached prompt of a session. If the state or the memory has changed, render it again with `render`.

        `kind` is the kind of prompt: system or assistant.
        """
        session = getattr(
            session, "_here", session
        )  # a public `Session` holds the context that has these facts
        key, remembered = (kind, session.id, session.owner), "" if memory is None else memory.context()
        cached = self._cached.get(key)
        if cached is not None and cached.state_number == session.state_number and cached.memory == remembered:
            return cached.text
        text = render(
            {"session": _facts(session), "state": session.seen_state, "memory": neutralize(remembered)}
        )
        if cached is None and len(self._cached) >= MAX_CACHED_PROMPTS:
            del self._cached[next(iter(self._cached))]
        self._cached[key] = _CachedPrompt(session.state_number, remembered, text)
        return text

    def user_prompt(
        self, session: PromptSession, view: TurnView, request: Request, memory: ModelView | None = None
    ) -> str:
        """Return the text after the conversation for one model call: the rendered user template, then the text of the request.

        Raises:
            ConfigurationError: The template is invalid; the text names it and the line.
        """
        if not self.user:
            return request.tail
        text = self._render(
            self.user,
            session=_facts(session),
            memory="" if memory is None else memory.context(),
            message=view.message.text,
            state=view.state,
            stage=view.stage,
            calls=view.calls,
            repairs=view.repairs,
        )
        return f"{text}\n\n{request.tail}" if text and request.tail else text or request.tail

    def messages(
        self, session: PromptSession, memory: ModelView, user_prompt: str, *, is_paused: bool = False
    ) -> Sequence[ChatMessage]:
        """Assemble the messages to send: the assistant prompt, the messages that the memory selects, and the user prompt.

        If the last message is an answer, a short message that asks the model to continue is added. If `is_paused` is True,
        none is added, because the model resumes its own answer.

        Raises:
            ContextOverflow: The messages exceed the context budget.
        """
        prefix = self.assistant_prompt(session, memory) if self.assistant else ""
        memory.check_room(prefix + user_prompt if prefix else user_prompt)
        messages = memory.messages()
        if user_prompt:
            messages = followed_by(messages, ChatMessage("user", (Text(neutralize(user_prompt)),)))
        elif messages and messages[-1].role == "assistant" and not is_paused:
            messages = followed_by(messages, CONTINUE_MESSAGE)
        return preceded_by(messages, ChatMessage("assistant", (Text(prefix),))) if prefix else messages

    def fingerprint(self, system: str, tools: Sequence[ToolSpec]) -> str:
        """Return a checksum of a system prompt and its tools. A replay compares checksums to detect changes."""
        if tools is not self._last_tools:
            self._last_tools = tools
            text = f"{tools!r}{self.assistant}"
            self._tools_checksum = zlib.crc32(text.encode("utf-8", "surrogatepass"))
        return f"{zlib.crc32(system.encode('utf-8', 'surrogatepass'), self._tools_checksum):08x}"

    def check(self) -> None:
        """Render the templates that are otherwise rendered only for sessions, so that their errors appear at once.

        Raises:
            ConfigurationError: A template is invalid; the text names it and the line.
        """
        if self.live is not None:
            self.live(EMPTY_SESSION_FACTS)
        if self.assistant:
            self._render(self.assistant, **EMPTY_SESSION_FACTS)
        if self.user:
            check_template(self.user, name=self.template.name)

    def _render(self, text: str, **variables: object) -> str:
        variables["examples"] = self.template.examples
        return render(text, self.profile, name=self.template.name, variables=variables)


def _facts(session: PromptSession) -> Mapping[str, str]:
    """Return the data of a session for templates: id, owner and description.

    Users choose these names, so delimiters of the prompt are removed from them.
    """
    return {
        "id": session.id,
        "owner": neutralize(session.owner.name),
        "description": neutralize(session.description),
    }


def check_template(template: str, *, name: str) -> None:
    """Check the syntax of a prompt template. `name` is the name of the template in errors.

    Raises:
        ConfigurationError: The template is invalid; the text names it and the line.
    """
    from jinja2 import TemplateError  # noqa: PLC0415

    try:
        _compile_template(template)
    except (TemplateError, *_TEMPLATE_ERRORS) as error:
        raise _template_error(name, error) from error


def render(
    template: str, profile: Profile, *, name: str, variables: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Render a template with a profile and variables, and strip surrounding whitespace.

    `name` is the name of the template in errors.

    Raises:
        ConfigurationError: The template is invalid; the text names it and the line.
    """
    if template == WHO:
        return _describe(profile)
    from jinja2 import TemplateError  # noqa: PLC0415

    try:
        return _compile_template(template)(variables, profile=profile).strip()
    except (TemplateError, *_TEMPLATE_ERRORS) as error:
        raise _template_error(name, error) from error


def _describe(profile: Profile) -> str:
    """Return the introduction of an agent from its profile: the same text as the template `WHO`, but without jinja2.

    `WHO` is the only template of most agents, and the import of jinja2 takes 20 ms.
    """
    role, goal = profile.role, profile.goal
    if role.lower().startswith("you are "):
        lines = [f"Your name is {profile.name}. {role}"]
    else:
        text = f"You are {profile.name}, {role}" if role else f"You are {profile.name}"
        lines = [text if role.endswith((".", "!", "?")) else f"{text}."]
    if goal:
        lines.append(goal if goal.lower().startswith("your goal") else f"Your goal: {goal}")
    if profile.capabilities:
        lines.append(f"What you can do: {profile.capabilities}")
    if profile.body:
        lines += ["", profile.body]
    return "\n".join(lines).strip()


def _template_error(name: str, error: Exception) -> ConfigurationError:
    from jinja2 import TemplateSyntaxError  # noqa: PLC0415

    line = error.lineno if isinstance(error, TemplateSyntaxError) else _line(error.__traceback__)
    return ConfigurationError(f"template {name!r}, line {line}: {error}")


def _line(traceback: TracebackType | None) -> int:
    """Return the line of a template in which an error was raised; 0 if the line is unknown."""
    return max((step.tb_lineno for step in _steps(traceback) if _is_template(step)), default=0)


def _steps(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_template(step: TracebackType) -> bool:
    return step.tb_frame.f_code.co_filename == _FILE_NAME


def fill_template(template: str, values: Mapping[str, object]) -> str:
    """Replace each `{{name}}` in a short text by its value. Values are never parsed as templates.

    Placeholders without a value are unchanged.
    """
    return _PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), template)
