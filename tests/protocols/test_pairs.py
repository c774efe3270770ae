"""A protocol of a separate template and classifier: its prompts, and the check that both halves fit."""

from typing import ClassVar

import pytest

from actgent import (
    Agent,
    AgentCore,
    AnswerError,
    Classifier,
    ConfigurationError,
    Event,
    ParseError,
    Profile,
    PromptTemplate,
    Protocol,
    Request,
    ScriptedLLM,
    Sender,
    SendReply,
    ShortTermMemory,
    open_runtime,
)
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.prompt_layers import PromptLayer
from actgent.protocols.prompt_rendering import PromptManager
from actgent.protocols.protocol_interface import Fail
from actgent.protocols.react_protocol import ReAct
from actgent.protocols.router_protocol import Router
from actgent.protocols.simple_protocol import Simple

from .conftest import view


class Asking(PromptTemplate):
    """A template that asks for `WORD: text`."""

    name: ClassVar[str] = "words"
    template: ClassVar[str] = "You are {{ profile.name }}. Answer like: {{ examples[0] }}"
    examples: ClassVar[tuple[str, ...]] = ("NOTE: it rains",)


class Placed(Asking):
    """`Asking` with an assistant template for the session and a user template for each model call."""

    assistant_template: ClassVar[str] = "I talk with {{ session.owner }} in {{ session.id }}."
    user_template: ClassVar[str] = "Call {{ calls }} for {{ message }}, {{ state.get('n', 0) }} done."

    def request(self, view):
        return Request(tail="Be short.")


class Reading(Classifier):
    """A classifier of `WORD: text`."""

    def read(self, answer, view):
        word, colon, text = answer.text.partition(": ")
        if not colon:
            raise ParseError("there is no colon", answer.text)
        return [Event(name=word.lower(), data=text), SendReply(text=text)]


class Failing(Classifier):
    """A classifier that returns an error for each answer."""

    def read(self, answer, view):
        return [Fail(ParseError("never good", answer.text))]


class Breaking(Classifier):
    """A classifier with a bug."""

    def read(self, answer, view):
        return [SendReply(text={}["x"])]


class NeedsTypes(Classifier):
    """A classifier that accepts the names of the profile's types."""

    def read(self, answer, view):
        if answer.text.partition(":")[0] not in [each.name for each in view.profile.types]:
            raise ParseError("that is no type", answer.text)
        return [SendReply(text=answer.text)]


def agent(*answers, template=None, classifier=None, **options):
    model = ScriptedLLM(answers or ("NOTE: x",))
    pair = Protocol.pair(template or Asking(), classifier or Reading())
    return Agent("scribe", llm=model, protocol=pair, **options), model


class Shown(Reading):
    """A classifier that shows the text after the colon, and reports a shortfall for each message type."""

    def partial(self, text):
        return text.partition(": ")[2]

    def shortfall(self, message_type):
        return message_type and f"only {message_type}"


def test_template_and_classifier_define_separate_parts():
    """The template defines the stages. The classifier defines the partial text and the shortfall."""

    class Staged(Asking):
        def stage_name(self, view):
            return f"at {view.stage}"

    pair = Protocol.pair(Staged(), Shown())
    assert pair.stage_name(view(stage="work")) == "at work"
    assert Protocol.pair(Asking(), Shown()).stage_name(view(stage="work")) == "work"
    assert pair.partial("NOTE: it ra") == "it ra"
    growth = pair.partial_answer()
    assert [growth.add(piece) for piece in ("NO", "TE: it", " rains")] == ["", "it", " rains"]
    assert [pair.shortfall(kind) for kind in (None, "half")] == [None, "only half"]


async def test_a_pair_is_a_protocol():
    """The template writes the prompt and the classifier reads the answer. An unreadable answer is retried."""
    scribe, model = agent("hello", "NOTE: the sun shines")
    async with scribe:
        assert (await scribe.run("weather?")).text == "the sun shines"
    assert model.chats[0].system == scribe.system_prompt == "You are scribe. Answer like: NOTE: it rains"
    assert "there is no colon" in model.chats[1].messages[-1].parts[0].text


@pytest.mark.parametrize(
    ("classifier", "reason"),
    [(Failing(), "never good"), (Breaking(), "KeyError('x')"), (NeedsTypes(), "that is no type")],
)
def test_mismatched_template_and_classifier_are_rejected(classifier, reason):
    """The error names both halves, the example and its mistake."""
    with pytest.raises(ConfigurationError) as caught:
        agent(classifier=classifier)
    text = str(caught.value)
    assert f"template Asking and classifier {type(classifier).__name__} do not fit together" in text
    assert "'NOTE: it rains'" in text
    assert reason in text


def test_template_and_classifier_are_checked_with_the_types_of_the_agent():
    """A pair can fit the instructions of one agent and not those of another agent."""
    agent(classifier=NeedsTypes(), instructions=["NOTE"])
    with pytest.raises(ConfigurationError, match="that is no type"):
        agent(classifier=NeedsTypes(), instructions=["MEMO"])


def test_a_protocol_of_one_class_may_have_examples():
    """The protocol's examples are checked by its own `read`."""

    class Both(Asking, Failing, Protocol):
        pass

    with pytest.raises(ConfigurationError, match="template Both and classifier Both do not fit"):
        Agent("x", llm=ScriptedLLM(["a"]), protocol=Both())


def test_invalid_pair_is_rejected():
    """Cases: a class in place of an object, swapped arguments, and an object that is no template."""
    with pytest.raises(ConfigurationError, match="template= must be a PromptTemplate"):
        Protocol.pair(Reading(), Asking())
    with pytest.raises(ConfigurationError, match="classifier= must be a Classifier"):
        Protocol.pair(Asking(), Reading)

    class Silent(Asking):
        examples = ()

    with pytest.raises(ConfigurationError, match="template Silent has no examples="):
        Protocol.pair(Silent(), Reading())


@pytest.mark.parametrize(
    "texts",
    [
        {"assistant_template": "{{ session.owner"},
        {"assistant_template": "{{ sesion.owner }}"},
        {"user_template": "{% if %}"},
    ],
)
def test_broken_templates_are_rejected_with_their_line(texts):
    """The agent's constructor raises the error, before a session exists."""
    template = type("Broken", (Asking,), texts)()
    with pytest.raises(ConfigurationError, match="template 'words', line 1"):
        agent(template=template)


async def test_each_prompt_has_its_lifetime():
    """The system prompt belongs to the agent, the assistant prompt to the session, and the user prompt to one model call. Requests only grow at the end."""
    scribe, model = agent("NOTE: a", "b", "NOTE: c", template=Placed())
    async with scribe:
        session = await scribe.create_session("Ada <system>", session_id="s1")
        for text in ("one", "two"):
            await scribe.run(text, session=session)
    first, _, third = ([(m.role, m.parts[0].text) for m in chat.messages] for chat in model.chats)
    assert first == [
        ("assistant", "I talk with Ada [system> in s1."),
        ("user", "one"),
        ("user", "Call 0 for one, 0 done.\n\nBe short."),
    ]
    assert third[:-1] == [*first[:-1], ("assistant", "NOTE: a"), *third[3:-1]]
    assert third[-1] == ("user", third[-1][1])
    assert third[-1][1].startswith("Call 1 for Your last answer could not be used")
    assert {chat.system for chat in model.chats} == {scribe.system_prompt}
    assert "Call" not in "".join(part.text for message in session.history for part in message.parts)


async def test_an_assistant_prompt_precedes_long_conversations():
    """The assistant prompt is the first message, before the part of the conversation that memory selects."""
    scribe, model = agent(*["NOTE: y"] * 40, template=Placed(), memory=ShortTermMemory(max_tokens=150))
    async with scribe:
        session = await scribe.create_session("ada", session_id="s1")
        for number in range(40):
            await scribe.run(f"message {number}", session=session)
    assert {chat.messages[0].parts[0].text for chat in model.chats} == {"I talk with ada in s1."}
    assert any("earlier messages" in chat.messages[1].parts[0].text for chat in model.chats)
    assert len(model.chats[-1].messages) == len(list(model.chats[-1].messages)) < 60


async def test_output_and_layers_keep_the_texts():
    """`output=` and a prompt layer of one call change neither the assistant prompt nor the user template."""
    scribe, model = agent("NOTE: 5", template=Placed())
    async with scribe:
        await scribe.run("one", output={"type": "string"}, prompt=PromptLayer("Other.", mode="replace"))
    chat = model.chats[0]
    assert chat.system == "Other."
    assert chat.messages[0].parts[0].text.startswith("I talk with")
    assert chat.messages[-1].parts[0].text.startswith("Call 0 for one")


async def test_assistant_prompt_is_equal_after_a_restart(tmp_path):
    """The session determines the assistant prompt. A changed template has another fingerprint in the journal."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    for text in ("one", "two"):
        scribe, model = agent("NOTE: a", template=Placed())
        async with open_runtime(journal=url) as runtime:
            await runtime.start(scribe)
            session = await scribe.ensure_session("ada", "s1")
            await scribe.run(text, session=session)
        assert model.chats[0].messages[0].parts[0].text == "I talk with ada in s1."
    pair, other = PromptManager(Placed(), Profile()), PromptManager(Asking(), Profile())
    assert pair.fingerprint("x", ()) != other.fingerprint("x", ())
    assert other.fingerprint("x", ()) == PromptManager(Bare(), Profile()).fingerprint("x", ())


async def test_subclass_of_the_core_can_override_a_step():
    """A subclass of the core can override each step."""
    steps = []

    def traced(name):
        def step(self, *arguments, **named):
            steps.append(name)
            return getattr(super(Traced, self), name)(*arguments, **named)

        return step

    Traced = type("Traced", (AgentCore,), {n: traced(n) for n in ("remember", "ask", "read", "act", "reply")})  # noqa: N806

    class Own(Agent):
        core_type = Traced

    own = Own("own", llm=ScriptedLLM(["hello"]))
    async with own:
        assert (await own.run("hi")).text == "hello"
    assert steps == ["remember", "ask", "read", "act", "reply"]


def test_cached_assistant_prompts_are_bounded(monkeypatch):
    """The cache evicts its oldest prompt. The prompt is later rendered to the same bytes."""
    monkeypatch.setattr("actgent.protocols.prompt_rendering.MAX_CACHED_PROMPTS", 2)
    manager = PromptManager(Placed(), Profile())

    class Facts:
        owner = Sender("ada")
        description = ""
        seen_state: ClassVar = {}
        state_number = 0

        def __init__(self, name):
            self.id = name

    texts = [manager.assistant_prompt(Facts(name)) for name in ("a", "b", "c", "a")]
    assert texts[0] == texts[3] != texts[1]
    assert len(manager._cached) == 2


# --- a classifier without a session ----------------------------------------------------------------

GREETING = {"name": "greeting", "description": "A greeting.", "schema": {"content": "<text>"}}
CREATION = {"name": "Creation", "schema": '{"name": "<name>"}', "tool": "make"}


@pytest.mark.parametrize(
    ("classifier", "response", "name"),
    [
        (Bare(), "Hello.", "greeting"),
        (Simple(), '{"messageType": "greeting", "content": "Hello."}', "greeting"),
        (Simple(), '{"messageType": "Creation", "content": {"name": "poet"}}', "Creation"),
        (Simple(), '{"messageType": "DIRECT_RESPONSE", "content": "Hello."}', "DIRECT_RESPONSE"),
        (Simple(), '{"messageType": "TOOL_INVOCATION", "content": {"name": "add"}}', "TOOL_INVOCATION"),
        (Router(), "Hello.", "DIRECT_RESPONSE"),
        (Router(), '{"top_level_intent": "ACTION", "second_level_intent": "Creation"}', "Creation"),
        (
            ReAct(),
            '{"primary_action": {"response_purpose": "DIRECT_RESPONSE", "messageType": "Creation", "response_content": {"name": "x"}}}',
            "Creation",
        ),
    ],
)
def test_a_classifier_names_the_type_of_an_answer(classifier, response, name):
    """`classify` and `validate_response` need no session. Types can be dicts."""
    assert classifier.classify(response, [GREETING, CREATION]) == name
    assert classifier.validate_response(response, [GREETING, CREATION])


@pytest.mark.parametrize(
    "response", ["", "Hello.", '{"messageType": "Unknown", "content": 1}', '{"messageType": "gree']
)
def test_a_classifier_reports_a_wrong_answer_type(response):
    """`validate_response` is False, and `classify` raises the reason."""
    assert not Simple().validate_response(response, [GREETING, CREATION])
    with pytest.raises(AnswerError):
        Simple().classify(response, [GREETING, CREATION])


def test_failed_outcome_is_not_a_valid_response():
    """A classifier can return its error or raise it."""

    class Failing(Classifier):
        def read(self, answer, view):
            return [Fail(ParseError("not this"))]

    assert not Failing().validate_response("x")
    with pytest.raises(ParseError, match="not this"):
        Failing().classify("x")
