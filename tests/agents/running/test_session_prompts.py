"""Prompts with session, state and memory, and first messages that a model rewrites."""

import pytest

from actgent import (
    Agent,
    BareAgent,
    ConfigurationError,
    Image,
    Limits,
    ModelError,
    ModelTimeout,
    ReActAgent,
    ScriptedLLM,
    Sender,
    Text,
    open_runtime,
)
from actgent.llm.model_interface import ModelResponse
from actgent.memory.short_term_memory import ShortTermMemory, ShortTermView
from actgent.messages import Usage
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.prompt_layers import PromptLayer

PNG = b"\x89PNG\r\n\x1a\n"
GREETING = PromptLayer(
    "You talk to {{ session.owner }} about {{ session.description or 'nothing yet' }}; "
    "{{ state.get('plan', 'no plan') }}.",
    variables={},
)


def said_by(llm):
    return [chat.system for chat in llm.chats]


class Noted(ShortTermView):
    """A memory view with text for prompts."""

    facts = "It rains."

    def context(self):
        return type(self).facts


class NotedMemory(ShortTermMemory):
    def open_view(self):
        return Noted(1_000_000, 1_000_000)


async def test_system_prompt_renders_session_and_state():
    """Each session has its own prompt. It stays unchanged until the state changes, and then changes once."""
    llm = ScriptedLLM(["a"] * 8)
    async with BareAgent("clerk", llm=llm, role="a clerk", prompt=GREETING) as agent:
        session = await agent.create_session("ada", "book a flight")
        await session.wait_idle()
        await agent.run("go on", session=session)
        session.state.dispatch(("plan", "two steps"))
        await agent.run("and?", session=session)
        await agent.run("and then?", session=session)
        await agent.run("hi", session=await agent.create_session(Sender("<system>bob")))
    first, second, third, fourth, other = said_by(llm)
    assert first.endswith("You talk to ada about book a flight; no plan.")
    assert first.startswith("You are clerk, a clerk.")
    assert second == first
    assert third == fourth == first.replace("no plan", "two steps")
    assert "about nothing yet" in other
    assert "<system>" not in other


async def test_prompt_is_rendered_once_per_change(monkeypatch):
    """Any number of model calls share a rendering; each change of the state renders again."""
    rendered = []

    def render(text, *_, variables, **__):
        rendered.append(text)
        return f"{text} {variables['state'].get('n')}"

    monkeypatch.setattr("actgent.protocols.prompt_layers.render", render)
    async with BareAgent("clerk", llm=ScriptedLLM(["a"] * 4), prompt=GREETING) as agent:
        session = await agent.create_session("ada")
        before = len(rendered)
        await agent.run("1", session=session)
        await agent.run("2", session=session)
        assert len(rendered) == before + 1
        session.state.dispatch(("n", 1))
        await agent.run("3", session=session)
        await agent.run("4", session=session)
        assert len(rendered) == before + 2


async def test_prompts_render_memory():
    """The assistant and user prompts of the agent contain the memory, and update when it changes."""
    llm = ScriptedLLM(["a"] * 2)
    agent = Agent(
        "clerk",
        llm=llm,
        memory=NotedMemory(),
        assistant_prompt="I know of {{ session.owner }}: {{ memory }}",
        user_prompt="Answer {{ message | length }} characters of {{ session.owner }}. {{ memory }}",
    )
    async with agent:
        session = await agent.create_session("ada")
        await agent.run("hello", session=session)
        Noted.facts = "It snows."
        await agent.run("hello", session=session)
        Noted.facts = "It rains."
    for chat, facts in zip(llm.chats, ["It rains.", "It snows."], strict=True):
        assert (chat.messages[0].role, chat.messages[0].parts[0].text) == (
            "assistant",
            f"I know of ada: {facts}",
        )
        assert chat.messages[-1].parts[-1].text == f"Answer 5 characters of ada. {facts}"
    assert "characters of" not in repr(session.history)


async def test_protocol_template_may_contain_the_session():
    """After a restart the template is rendered to the same bytes."""

    class Personal(Bare):
        template = "You serve {{ session.owner }} ({{ session.id }})."

    llm = ScriptedLLM(["a", "b"])
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(Agent("clerk", llm=llm, protocol=Personal()))
        await agent.run("hi", session=await agent.create_session("ada", session_id="s"))
        assert agent.system_prompt == "You serve user (example)."
    assert said_by(llm) == ["You serve ada (s)."]


async def test_prompt_layers_work_with_a_changing_prompt():
    """Text appended for one call is last; a wrapping template is rejected, and a replacing one is used."""
    llm = ScriptedLLM(["a"] * 3)
    async with BareAgent("clerk", llm=llm, prompt=GREETING) as agent:
        with pytest.raises(ConfigurationError, match="a layer cannot extend it"):
            await agent.create_session("ada", prompt="Be brief.")
        session = await agent.create_session("ada", prompt=PromptLayer("Only this.", mode="replace"))
        await agent.run("a", session=session)
        await agent.run("b", session=await agent.create_session("bob"), prompt="Be brief.")
    assert said_by(llm)[0] == "Only this."
    assert "You talk to bob" in said_by(llm)[1]
    assert "Be brief." in repr(llm.chats[1].messages)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"prompt": PromptLayer("{{ state.plan }}", variables={})}, "plan"),
        ({"assistant_prompt": "{{ session.name }}"}, "name"),
        ({"user_prompt": "{% if %}"}, "line 1"),
        ({"user_prompt": 5}, "a string"),
    ],
)
def test_templates_are_checked_at_construction(options, expected):
    """The state is empty at first. An unknown name and a broken template raise an error."""
    with pytest.raises(ConfigurationError, match=expected):
        BareAgent("clerk", llm=ScriptedLLM([]), **options)


def test_plain_text_is_not_a_template():
    """Braces in plain text are unchanged."""
    agent = ReActAgent("tutor", llm=ScriptedLLM([]), prompt="Say {{ session.owner }}.")
    assert agent.system_prompt.endswith("Say {{ session.owner }}.")
    assert agent.prompts.live is None


# --- a first message in a model's words ----------------------------------------------------------


def answered(text, stop="end"):
    return ModelResponse(parts=(Text(text),), stop=stop, usage=Usage(input_tokens=10, output_tokens=5))


async def test_a_first_message_is_rewritten():
    """One model call rewrites it and gets the sender's own text. The usage counts, and images stay."""
    enhancer, llm = ScriptedLLM([answered("Plan three days in Rome.")]), ScriptedLLM(["Day one ..."])
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=llm, models={"enhancer": enhancer}))
        picture = Image(media_type="image/png", data=PNG)
        session = await agent.create_session("ada", [Text("rome 3d"), picture], enhance_prompt=True)
        await session.wait_idle()
        first = session.history[0]
        assert (first.text, first.parts[1]) == ("Plan three days in Rome.", picture)
        assert first.metadata == {"enhanced_from": "rome 3d"}
        assert (first.sender.kind, session.description) == ("user", "Plan three days in Rome.")
        assert (session.usage.total.input_tokens, session.usage.total.output_tokens) == (10, 5)
        asked = enhancer.chats[0]
        assert asked.messages[0].parts == (Text("rome 3d"),)
        assert "rome 3d" not in repr(llm.chats[0].messages)


async def test_rewrite_accepts_an_instruction():
    """A text instead of True instructs the model; without a separate model the agent's is used."""
    llm = ScriptedLLM(["In French.", "Bien."])
    async with BareAgent("clerk", llm=llm) as agent:
        session = await agent.create_session("ada", "hello", enhance_prompt="Translate into French.")
        await session.wait_idle()
        assert llm.chats[0].system == "Translate into French."
        assert session.history[0].text == "In French."


@pytest.mark.parametrize("answer", [answered("half a sen", "length"), answered("", "end"), answered("hello")])
async def test_unusable_rewrite_keeps_the_original_message(answer):
    """A truncated, empty or identical rewrite leaves the message unchanged."""
    async with BareAgent(
        "clerk", llm=ScriptedLLM(["ok"]), models={"enhancer": ScriptedLLM([answer])}
    ) as agent:
        session = await agent.create_session("ada", "hello", enhance_prompt=True)
        await session.wait_idle()
        assert (session.history[0].text, dict(session.history[0].metadata)) == ("hello", {})


async def test_failed_rewrite_creates_no_session(autojump_clock):
    """The error of the model is raised, and the id is free. A hanging model is cancelled."""
    broken = ScriptedLLM([ModelError("down"), "never"], delay=0)
    async with BareAgent("clerk", llm=ScriptedLLM(["ok"]), models={"enhancer": broken}) as agent:
        with pytest.raises(ModelError, match="down"):
            await agent.create_session("ada", "hello", session_id="s", enhance_prompt=True)
        assert (await agent.create_session("ada", session_id="s")).history == ()
    slow = ScriptedLLM(["late"], delay=60)
    limits = Limits(model_timeout=5)
    async with BareAgent("clerk", llm=ScriptedLLM([]), models={"enhancer": slow}, limits=limits) as agent:
        with pytest.raises(ModelTimeout, match="5 s"):
            await agent.create_session("ada", "hello", enhance_prompt=True)


async def test_prompt_manager_renders_the_prompt_of_a_session():
    """A program renders the assistant prompt of a session as the model sees it."""
    llm = ScriptedLLM(["Hello."])
    prompt = "I talk with {{ session.owner }} about {{ state.get('topic', 'all') }}."
    async with BareAgent("host", llm=llm, assistant_prompt=prompt) as agent:
        session = await agent.create_session("ada")
        session.state.dispatch(lambda _: ("topic", "tea"))
        assert agent.prompts.assistant_prompt(session) == "I talk with ada about tea."
        await agent.run("Hi", session=session)
    assert llm.chats[0].messages[0].parts[0].text == "I talk with ada about tea."
