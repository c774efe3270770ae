"""Prompts from templates: what a developer wrote, filled with what is known of agent, session and pass."""

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
from actgent.memory.base import ModelView
from actgent.memory.marks import unmarked
from actgent.memory.shown import followed_by, preceded_by
from actgent.messages import ChatMessage, Sender, Text, ToolSpec
from actgent.structured.schemas import is_json_schema

from .base import MESSAGE_TYPE, ClassificationType, Profile, PromptTemplate, Request, View, is_whole_answer

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_FILE_NAME = "<template>"  # what jinja2 calls a template that comes from a string
_MISTAKES = (
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)

# The parts that the system prompts of several protocols share.
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
"""Each classification type with the form of its content; `"<...>"` in a form stands for a value."""

NAMED_TYPES = """\
{% for type in profile.types %}
- {{ type.name }}{% if type.description %}: {{ type.description }}{% endif %}

{% if type.schema %}
{{ type | answer_form }}
{% endif %}
{% endfor %}
"""
"""Each classification type with the form of the whole answer, which names the type."""


def _json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON for a prompt. The `tojson` of jinja2 would escape `<`, `>`, `&` and `'` for HTML."""
    return json.dumps(value, ensure_ascii=False, default=dict, indent=indent)


def answer_form(kind: ClassificationType) -> str:
    """Return the form of an answer of a type as JSON: `messageType` with the type's name, and the content's schema."""
    if not is_whole_answer(kind.schema):
        return _json({MESSAGE_TYPE: kind.name, "content": kind.schema})
    if is_json_schema(kind.schema):
        members = {**kind.schema["properties"], MESSAGE_TYPE: {"const": kind.name}}
        return _json({**kind.schema, "properties": members})
    return _json({**kind.schema, MESSAGE_TYPE: kind.name})


@functools.cache
def _from_string() -> Callable[[str], Any]:
    """Jinja2 with nothing but what templates need: values come from users, and are never templates."""
    from jinja2 import StrictUndefined  # noqa: PLC0415 - with the first prompt: whoever reads answers needs none
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False, cache_size=0
    )
    environment.globals.clear()  # lipsum, range, cycler ...: ways to print without end
    environment.filters["json"] = environment.filters["tojson"] = _json
    environment.filters["answer_form"] = answer_form
    return environment.from_string


@functools.lru_cache(maxsize=256)
def _compiled(template: str) -> Callable[..., str]:
    rendering: Callable[..., str] = _from_string()(template).render
    return rendering


class PromptSession(typing.Protocol):
    """A session, as far as prompts know it."""

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


OF_SESSIONS = frozenset({"session", "state", "memory"})
"""What templates say that differs from session to session."""
NOTHING_YET: Mapping[str, Any] = MappingProxyType(
    {"session": {"id": "example", "owner": "user", "description": ""}, "state": {}, "memory": ""}
)
"""How a session begins, for a look whether a template can be rendered."""


@functools.lru_cache(maxsize=256)
def names_of_sessions(template: str) -> frozenset[str]:
    """Which of `OF_SESSIONS` a template says; a broken one says none."""
    if not any(name in template for name in OF_SESSIONS):
        return frozenset()
    from jinja2 import TemplateError, meta  # noqa: PLC0415 - as above
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    try:
        parsed = ImmutableSandboxedEnvironment().parse(template)
    except TemplateError:
        return frozenset()
    return OF_SESSIONS & meta.find_undeclared_variables(parsed)


Live = Callable[[Mapping[str, Any]], str]
"""Renders a prompt from the facts of a session."""


@attrs.frozen
class _Kept:
    """A prompt of a session, and what it was rendered from."""

    number: int
    """The changes of the state by then."""
    memory: str
    text: str


GO_ON = ChatMessage("user", (Text("Go on."),))
"""Said where a stage says nothing of its own: a conversation that ends with the model's words would be a prefill."""
MAX_KEPT = 1000
"""Assistant prompts that an agent keeps; that of a session whose prompt is gone is rendered again, to the same bytes."""


@attrs.define(eq=False)
class PromptManager:
    """Renders what the model of one agent is told, from template, profile, session and memory.

    The system prompt is the same for all sessions, the assistant prompt for all passes of a session, and only the user
    prompt, at the end, is a pass's own. So the beginning of what is sent is byte for byte that of the call before it, and a
    pass renders nothing but its end.
    """

    template: PromptTemplate
    """The protocol's: how it asks."""
    profile: Profile
    """Who the agent is, for templates."""
    _system: str | None = attrs.field(default=None, kw_only=True)
    """The system prompt where it is not the template alone, e.g. with layers round it."""
    live: Live | None = attrs.field(default=None, kw_only=True)
    """Renders the system prompt of each session; None where all have the same."""
    assistant: str = attrs.field(kw_only=True)
    """The template of assistant prompts: the protocol's, or the agent's own."""
    user: str = attrs.field(kw_only=True)
    """The same of user prompts."""
    _kept: dict[tuple[str, str, Sender], _Kept] = attrs.field(init=False, factory=dict)
    """System and assistant prompts of sessions."""
    _tools_seen: Sequence[ToolSpec] | None = attrs.field(init=False, default=None)
    _tools_sum: int = attrs.field(init=False, default=0)
    """The checksum of the tools that were seen last: those of an agent seldom change."""

    @assistant.default
    def _of_protocol(self) -> str:
        return self.template.assistant_template

    @user.default
    def _users_of_protocol(self) -> str:
        return self.template.user_template

    def system_prompt(self) -> str:
        """The protocol's template over the profile: `{{ profile.role }}`, `goal`, `capabilities`, `types` ...

        What a profile says is inserted as it is and never read as a template.

        Raises:
            ConfigurationError: the template is broken; the text names it and the line.
        """
        if self._system is None:
            facts = NOTHING_YET if names_of_sessions(self.template.template) else {}
            self._system = self._rendered(self.template.template, **facts)
        return self._system

    def rendered_for(self, facts: Mapping[str, Any]) -> str:
        """Render the protocol's template over the facts of a session."""
        return self._rendered(self.template.template, **facts)

    @property
    def form_template(self) -> str:
        """The part of the protocol's template that tells the model the form of its answers; empty if any text is an answer."""
        return self.template.template.removeprefix(WHO)

    def with_form(self, text: str, facts: Mapping[str, Any] = MappingProxyType({})) -> str:
        """Return a system prompt written by the developer, with the protocol's form of answers after it."""
        form = self._rendered(self.form_template, **facts) if self.form_template else ""
        return f"{text}\n\n{form}" if form else text

    def session_prompt(self, session: PromptSession, memory: ModelView) -> str:
        """Render the system prompt of a session, where it says something of it: once, and again when what it says changes.

        Raises:
            ConfigurationError: the template is broken; the text names it and the line.
        """
        if (live := self.live) is not None:
            return self._once("system", session, memory, live)
        return self.system_prompt() if self._system is None else self._system

    def assistant_prompt(self, session: PromptSession, memory: ModelView | None = None) -> str:
        """Render the agent's own words behind the system prompt; empty if the template has none.

        Raises:
            ConfigurationError: the template is broken; the text names it and the line.
        """
        text = self.assistant
        if not text:
            return ""
        return self._once("assistant", session, memory, lambda facts: self._rendered(text, **facts))

    def _once(self, kind: str, session: PromptSession, memory: ModelView | None, render: Live) -> str:
        """A prompt as it was rendered last, unless the state or what memory gives has changed since."""
        session = getattr(
            session, "_here", session
        )  # a public `Session` holds the context that has these facts
        key, said = (kind, session.id, session.owner), "" if memory is None else memory.context()
        kept = self._kept.get(key)
        if kept is not None and kept.number == session.state_number and kept.memory == said:
            return kept.text
        text = render({"session": _facts(session), "state": session.seen_state, "memory": unmarked(said)})
        if kept is None and len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = _Kept(session.state_number, said, text)
        return text

    def user_prompt(
        self, session: PromptSession, view: View, request: Request, memory: ModelView | None = None
    ) -> str:
        """Render what is said behind the conversation in this pass: the user template, then the text of the request.

        Raises:
            ConfigurationError: the template is broken; the text names it and the line.
        """
        if not self.user:
            return request.tail
        text = self._rendered(
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
        """Put together the conversation to send: the assistant prompt, what memory shows, and the user prompt.

        Raises:
            ContextOverflow: it does not fit.
        """
        said = self.assistant_prompt(session, memory) if self.assistant else ""
        memory.check_room(said + user_prompt if said else user_prompt)
        messages = memory.messages()
        if user_prompt:
            messages = followed_by(messages, ChatMessage("user", (Text(unmarked(user_prompt)),)))
        elif messages and messages[-1].role == "assistant" and not is_paused:
            messages = followed_by(messages, GO_ON)
        return preceded_by(messages, ChatMessage("assistant", (Text(said),))) if said else messages

    def fingerprint(self, system: str, tools: Sequence[ToolSpec]) -> str:
        """Return the checksum of a prompt and its tools, by which a replay tells that they changed."""
        if tools is not self._tools_seen:
            self._tools_seen = tools
            words = f"{tools!r}{self.assistant}"
            self._tools_sum = zlib.crc32(words.encode("utf-8", "surrogatepass"))
        return f"{zlib.crc32(system.encode('utf-8', 'surrogatepass'), self._tools_sum):08x}"

    def check(self) -> None:
        """Check the templates that are rendered only when a session is there.

        Raises:
            ConfigurationError: one is broken; the text names it and the line.
        """
        if self.live is not None:
            self.live(NOTHING_YET)
        if self.assistant:
            self._rendered(self.assistant, **NOTHING_YET)
        if self.user:
            check_template(self.user, name=self.template.name)

    def _rendered(self, text: str, **variables: object) -> str:
        variables["examples"] = self.template.examples
        return render(text, self.profile, name=self.template.name, variables=variables)


def _facts(session: PromptSession) -> Mapping[str, str]:
    """Return the facts of a session that templates may say; names are chosen by people, and say nothing for the system."""
    return {
        "id": session.id,
        "owner": unmarked(session.owner.name),
        "description": unmarked(session.description),
    }


def check_template(template: str, *, name: str) -> None:
    """Check that a template can be rendered at all; `name` is what errors call it.

    Raises:
        ConfigurationError: the template is broken; the text names it and the line.
    """
    from jinja2 import TemplateError  # noqa: PLC0415

    try:
        _compiled(template)
    except (TemplateError, *_MISTAKES) as error:
        raise _broken(name, error) from error


def render(
    template: str, profile: Profile, *, name: str, variables: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """A template over a profile and variables, without blank lines at its ends; `name` is what errors call it.

    Raises:
        ConfigurationError: the template is broken; the text names it and the line.
    """
    from jinja2 import TemplateError  # noqa: PLC0415

    try:
        return _compiled(template)(variables, profile=profile).strip()
    except (TemplateError, *_MISTAKES) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ConfigurationError:
    from jinja2 import TemplateSyntaxError  # noqa: PLC0415

    line = error.lineno if isinstance(error, TemplateSyntaxError) else _line(error.__traceback__)
    return ConfigurationError(f"template {name!r}, line {line}: {error}")


def _line(traceback: TracebackType | None) -> int:
    """The line of a template that an error came from; 0 if none is known."""
    return max((step.tb_lineno for step in _steps(traceback) if _is_template(step)), default=0)


def _steps(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_template(step: TracebackType) -> bool:
    return step.tb_frame.f_code.co_filename == _FILE_NAME


def fill_template(template: str, values: Mapping[str, object]) -> str:
    """A short text with its `{{name}}` replaced by their values, which are never read as a template.

    Placeholders without a value stay as they are.
    """
    return _PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), template)
