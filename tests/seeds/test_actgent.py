"""Translations of the 45 code blocks in the document of actgent. Each translation is between `# block` and `# end`."""

import json
from typing import ClassVar, TypedDict

import pytest

from actgent import (
    Agent,
    AgentBuilder,
    AgentCore,
    BareAgent,
    CallTools,
    ClassificationType,
    Classifier,
    Event,
    Failure,
    Instruction,
    Memory,
    ModelView,
    ParseError,
    PromptTemplate,
    Protocol,
    ReActAgent,
    Reply,
    SchemaBuilder,
    ScriptedLLM,
    Sender,
    SendReply,
    ShortTermMemory,
    SimpleAgent,
    ToolCall,
    ToolRegistry,
    ToolResult,
)
from actgent.agents.session import context_of
from actgent.definitions.agent_folder import read_folder
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.react_protocol import ReAct
from actgent.protocols.simple_protocol import Simple

from .conftest import TYPES, agent_generator, answer, file_search, reacting, view

TOOL = {"name": "FileSearchTool", "parameters": {"query": "x"}}
INVOCATION = json.dumps(
    {
        "question_nature": "COMPLEX",
        "primary_action": {"response_purpose": "TOOL_INVOCATION", "response_content": TOOL},
    }
)
DIRECT = json.dumps(
    {
        "question_nature": "SIMPLE",
        "primary_action": {"response_purpose": "DIRECT_RESPONSE", "response_content": {"message": "Hello."}},
    }
)


async def test_block_1_the_methods_of_the_core():
    """A subclass can override the methods of AgentCore for the steps of a message."""
    done = []

    # block 1
    class Core(AgentCore):
        def remember(self, context, turn, message):
            done.append("remember") or super().remember(context, turn, message)

    # end
    kind = type("Told", (BareAgent,), {"core_type": Core})
    async with kind("a", llm=ScriptedLLM(["Hello."])) as agent:
        session = await agent.create_session("ada")
        await agent.receive(session.create_message("Hello"))
        await session.wait_idle()
    assert done == ["remember"]
    assert all(callable(getattr(AgentCore, name)) for name in ("run_turn", "ask", "read", "act", "reply"))


async def test_block_2_the_handlers_of_a_session():
    """Each handler receives only values of its kind."""
    received_items = []
    async with BareAgent("a", llm=ScriptedLLM([])) as agent:
        session = await agent.create_session("ada")
        # block 2
        session.on_conversation(received_items.append)
        session.on_event(received_items.append)
        session.on_tool_result(received_items.append)
        session.on_exception(received_items.append)
        # end
        received = [
            Reply(text="a"),
            Event(name="b"),
            ToolResult(call_id="c", tool_name="c", content="c"),
            Failure(kind="tool", error=ValueError("d"), message_id="d"),
        ]
        for each in received:
            await session.inject(each)
    assert received_items == received


async def test_block_3_the_prompts_of_an_agent():
    """An agent has a system prompt, an assistant prompt and a user prompt."""
    async with Agent("a", llm=ScriptedLLM([]), protocol=Bare()) as agent:
        session = await agent.create_session("ada")
        # block 3
        system = agent.prompts.system_prompt()
        assistant = agent.prompts.assistant_prompt(session)
        user = agent.prompts.user_prompt(session, view(), Bare().request(view()))
        # end
    assert system
    assert (assistant, user) == ("", "")


def test_block_4_the_texts_of_a_template():
    """A template has a system prompt, an assistant prompt, a user prompt and examples of answers."""

    # block 4
    class Mine(PromptTemplate):
        name, template = "mine", "You are {{ profile.name }}. Answer like {{ examples[0] }}."
        assistant_template, user_template = "I help {{ session.owner }}.", "Answer {{ message }}."
        examples = ('{"say": "Hello"}', '{"call": "tool", "with": {}}')

    # end
    assert Mine().examples[1]
    assert Mine.template.startswith("You are")


def test_block_5_the_three_steps_of_a_classifier():
    """The method `read` replaces handling, parsing and validation. An invalid answer raises ParseError."""
    # block 5
    outcomes = ReAct().read(answer(DIRECT), view())
    with pytest.raises(ParseError):
        ReAct().read(answer('{"primary_action": 5}'), view())
    # end
    assert outcomes[-1].text == "Hello."


@pytest.mark.parametrize("number", [6, 8])
def test_blocks_6_and_8_tools_are_registered(number):
    """Each block is one line, as in the document."""
    agent = BareAgent("a", llm=ScriptedLLM([]))
    if number == 6:
        # block 6
        agent.tools.add(file_search)
        # end
    else:
        # block 8
        agent.tools.add(agent_generator)
        # end
    assert len(agent.tools) >= 1


def test_block_7_brain_and_instruction_files(tmp_path):
    """The files are verbatim. The agent has the name of its folder, and the instruction the name in its file."""
    folder = tmp_path / "smith"
    (folder / "instructions").mkdir(parents=True)
    # block 7
    brain = '---\ninstructions:\n    creation: "instructions/creation.md"\n---\n'
    creation = (
        '---\ninstructionName: Creation\nschemaTemplate: "creation.json"\ntool: "AgentGenerator"\n---\n'
    )
    # end
    (folder / "brain.md").write_text(brain)
    (folder / "instructions" / "creation.md").write_text(creation)
    (folder / "instructions" / "creation.json").write_text('{"name": "<its name>"}')
    found = read_folder(folder, tools=["AgentGenerator"])
    assert [(each.name, each.tool) for each in found.instructions] == [("Creation", "AgentGenerator")]
    assert found.name == "smith"


async def test_block_9_mapped_tools_are_not_offered():
    """The agent offers the model only tools without an instruction, so no code of the program is needed."""
    llm = ScriptedLLM(["{}"] * 3)
    # block 9
    agent = SimpleAgent("a", llm=llm, types=TYPES, tools=[agent_generator, file_search])
    # end
    assert [spec.name for spec in agent.tools.specs][:1] == ["FileSearchTool"]
    assert "AgentGenerator" not in str(agent.tools.specs)
    assert ToolRegistry([agent_generator], mapped=["AgentGenerator"]).specs == ()


def test_block_10_instructions_and_their_tools():
    """An agent has its instructions, and each instruction names its tool."""
    # block 10
    creation = Instruction("creation", "A new agent", {"name": "<name>"}, tool="AgentGenerator")
    agent = SimpleAgent("a", llm=ScriptedLLM([]), instructions=[creation], tools=[agent_generator])
    # end
    assert agent.profile.instructions == (creation,)
    assert agent.tools.mapped == {"AgentGenerator"}


def test_block_11_a_schema_builder():
    """The block has two lines, as in the document."""
    instructions = [Instruction("greeting", "General greetings")]
    # block 11
    schema_builder = SchemaBuilder(instructions)
    classification_types = schema_builder.build()
    # end
    assert [each.name for each in classification_types] == ["greeting"]


def test_block_12_types_without_a_builder():
    """A classification type is created from a name, a description and a schema."""
    # block 12
    classification_types = [
        ClassificationType(
            name="greeting",
            description="General greetings and pleasantries",
            schema={"messageType": "greeting", "content": "<string>"},
        )
    ]
    # end
    assert SimpleAgent("a", llm=ScriptedLLM([]), types=classification_types).profile.types


def test_block_13_types_and_schemas_in_a_prompt():
    """The template of a protocol iterates over `profile.types`."""

    # block 13
    class Listing(Bare):
        template: ClassVar = (
            "{% for type in profile.types %}- {{ type.name }}: {{ type.description }}\n{% endfor %}"
            "{% for type in profile.types %}{{ type.name }}:\n```json\n{{ type.schema | json }}\n```\n{% endfor %}"
        )

    # end
    prompt = BareAgent("a", llm=ScriptedLLM([]), types=TYPES[:1], protocol=Listing()).system_prompt
    assert "- greeting: General greetings and pleasantries" in prompt
    assert 'greeting:\n```json\n{"content": "<text>"}\n```' in prompt


async def test_blocks_14_28_and_36_messages_and_their_senders():
    """The owner is the default sender. The agent answers messages that the program creates and enqueues."""
    llm = ScriptedLLM(lambda chat: f"heard {chat.messages[-1].parts[0].text}")
    async with BareAgent("a", llm=llm) as agent:
        session = await agent.create_session("ada")
        # block 14
        first = session.create_message("Hello")
        second = session.create_message("Tool result", sender="assistant")
        # end
        assert (first.sender.name, second.sender.kind) == ("ada", "assistant")

        # block 28
        async def chat(message, sender=session.owner):
            await agent.receive(session.create_message(message, sender=sender))

        # end
        await chat("Hello")
        result = "42"
        # block 36
        msg = session.create_message(result, sender=Sender("program", "system"))
        await agent.receive(msg)
        # end
        await session.wait_idle()
        texts = [each.text for each in session.history if each.sender.kind == "assistant"]
    assert texts == ["heard Hello", "heard <system>\n42\n</system>"]


async def test_block_15_the_role_of_a_sender():
    """The name of a sender sets its kind when the message is created."""
    llm = ScriptedLLM(["one", "two"])
    async with BareAgent("a", llm=llm) as agent:
        session = await agent.create_session("ada")
        # block 15
        assistant, system, user = (
            session.create_message("x", sender=name) for name in ("agent", Sender("clock", "system"), "bob")
        )
        # end
    assert [each.sender.kind for each in (assistant, system, user)] == ["agent", "system", "user"]


@pytest.mark.parametrize("number", [16, 30])
async def test_blocks_16_and_30_the_order_of_a_prompt(number):
    """The model gets the system prompt, the assistant prompt and the history in this order."""

    class Placed(Bare):
        assistant_template: ClassVar = "I talk with {{ session.owner }}."

    llm = ScriptedLLM(["Hello."])
    async with BareAgent("a", llm=llm, protocol=Placed()) as agent:
        session = await agent.create_session("ada")
        context = context_of(session)
        memory = ShortTermMemory().open_view()
        memory.add(session.create_message("Hi"), answered=True)
        if number == 16:
            # block 16
            system_prompt = agent.prompts.system_prompt()
            user_prompt = agent.prompts.user_prompt(context, view(), Bare().request(view()))
            messages = agent.prompts.messages(context, memory, user_prompt)
            # end
        else:
            # block 30
            system_prompt = agent.prompts.system_prompt()
            messages = agent.prompts.messages(context, memory, "")
            # end
        await agent.run("Hi", session=session)
    assert llm.chats[0].system == system_prompt
    assert [each.role for each in messages] == ["assistant", "user"]
    assert list(llm.chats[0].messages) == list(messages)


async def test_block_17_the_two_halves_of_an_agent():
    """An agent class has a template and a classifier as its default protocol."""

    # block 17
    class BaseAgent(Agent):
        default_protocol = staticmethod(lambda: Protocol.pair(Asking(), Reading()))

    # end
    async with BaseAgent("a", llm=ScriptedLLM(["NOTE: it rains"])) as agent:
        assert str(await agent.run("Weather?")) == "it rains"


def test_blocks_18_27_and_31_the_form_of_react():
    """The protocol reads answers in the ReAct format, and its prompt describes this format."""
    # block 18
    form = {
        "question_nature": "SIMPLE",
        "context": {"understanding": "a greeting"},
        "primary_action": {"response_purpose": "DIRECT_RESPONSE", "response_content": {"message": "Hello."}},
    }
    # end
    assert ReAct().read(answer(json.dumps(form)), view())[-1].text == "Hello."
    # block 27
    form = {
        "question_nature": "COMPLEX",
        "primary_action": {
            "response_purpose": "TOOL_INVOCATION",
            "response_content": {"name": "FileSearchTool", "parameters": {"query": "x"}},
        },
    }
    # end
    assert ReAct().read(answer(json.dumps(form)), view())[-1].calls[0].arguments == {"query": "x"}
    # block 31
    form = {
        "question_nature": "COMPLEX",
        "primary_action": {
            "response_purpose": "TOOL_INVOCATION",
            "response_content": {"name": "tool_name", "parameters": {}},
        },
    }
    # end
    assert ReAct().read(answer(json.dumps(form)), view())[-1].calls[0].name == "tool_name"
    assert "question_nature" in ReActAgent("a", llm=ScriptedLLM([]), types=TYPES[:1]).system_prompt


@pytest.mark.parametrize("number", [19, 32, 40])
def test_blocks_19_32_and_40_what_a_react_answer_means(number):
    """A ReAct answer results in a tool call or in a reply."""
    if number == 19:
        # block 19
        [outcome] = ReAct().read(answer(INVOCATION), view())
        # end
        assert isinstance(outcome, CallTools)
    elif number == 32:
        # block 32
        [outcome] = ReAct().read(answer(INVOCATION), view())
        is_tool_call = isinstance(outcome, CallTools)
        # end
        assert is_tool_call
    else:
        # block 40
        class ReActClassifier(ReAct):
            def read(self, answer, view):
                outcomes = super().read(answer, view)
                return [each for each in outcomes if isinstance(each, (CallTools, SendReply, Event))]

        # end
        assert ReActClassifier().read(answer(DIRECT), view())[-1].text == "Hello."


def test_blocks_20_and_41_an_answer_of_ones_own():
    """An agent accepts a response type of the program as its output."""

    # block 20, 41
    class CustomResponse(TypedDict):
        messageType: str

    # end
    assert BareAgent("a", llm=ScriptedLLM([]), output=CustomResponse).protocol is not None


class Asking(PromptTemplate):
    """A template that requires answers in the format `WORD: text`."""

    name: ClassVar[str] = "words"
    template: ClassVar[str] = "You are {{ profile.name }}. Answer like: {{ examples[0] }}"
    examples: ClassVar[tuple[str, ...]] = ("NOTE: it rains",)


class Reading(Classifier):
    """A classifier that reads answers in the format `WORD: text`."""

    def read(self, answer, view):
        return [SendReply(text=answer.text.partition(": ")[2])]


async def test_blocks_21_and_42_the_halves_of_a_pair():
    """An agent uses a classifier and a template of the program."""

    # block 21, 42
    class CustomClassifier(Classifier):
        def read(self, answer, view):
            return [SendReply(text=answer.text.upper())]

    class CustomTemplate(PromptTemplate):
        name, template, examples = "custom", "Answer in a word.", ("Yes",)

    # end
    pair = Protocol.pair(CustomTemplate(), CustomClassifier())
    async with Agent("a", llm=ScriptedLLM(["Yes"]), protocol=pair) as agent:
        assert str(await agent.run("Well?")) == "YES"


async def test_blocks_22_and_43_an_agent_of_ones_own():
    """An agent class of the program has a classifier and a template as its default protocol."""

    # block 22, 43
    class CustomAgent(Agent):
        default_protocol = staticmethod(lambda: Protocol.pair(Asking(), Reading()))

    # end
    async with CustomAgent("a", llm=ScriptedLLM(["NOTE: it rains"])) as agent:
        assert str(await agent.run("Weather?")) == "it rains"


async def test_block_23_template_and_classifier_in_one_class():
    """One class contains the whole protocol."""

    # block 23
    class Mine(Protocol):
        name = "mine"
        template = (
            'Answer with JSON: {"primary_action": {"response_purpose": "DIRECT_RESPONSE" or "TOOL_INVOCATION", '
            '"response_content": {"name": "...", "parameters": {}, "message": "..."}}}'
        )

        def read(self, answer, view):
            action = json.loads(answer.text)["primary_action"]
            content = action["response_content"]
            if action["response_purpose"] == "TOOL_INVOCATION":
                return [CallTools([ToolCall(content["name"], content["parameters"])])]
            return [SendReply(text=content["message"])]

    # end
    llm = ScriptedLLM([INVOCATION, DIRECT])
    async with Agent("a", llm=llm, protocol=Mine(), tools=[file_search]) as agent:
        assert str(await agent.run("Find x.")) == "Hello."
    assert "found x" in str(llm.chats[1].messages)


def test_block_24_the_two_boundaries():
    """A template returns the request, and a classifier returns the outcomes of the answer."""
    # block 24
    request = ReAct().request(view())
    outcomes = ReAct().read(answer(DIRECT), view())
    # end
    assert request.tail
    assert isinstance(outcomes[-1], SendReply)


def test_blocks_25_and_26_the_forms_of_bare_and_simple():
    """Bare returns the first type with the text. Simple reads a type and its content."""
    # block 25
    [bare] = Bare().read(answer("raw response"), view())
    # end
    assert (bare.message_type, bare.text) == ("greeting", "raw response")
    # block 26
    [said] = Simple().read(answer('{"messageType": "DIRECT_RESPONSE", "content": "Hello."}'), view())
    invocation = '{"messageType": "TOOL_INVOCATION", "content": {"name": "FileSearchTool", "parameters": {}}}'
    [called] = Simple().read(answer(invocation), view())
    # end
    assert (said.text, called.calls[0].name) == ("Hello.", "FileSearchTool")


async def test_block_29_how_a_message_is_processed():
    """A message is added to the history and to memory, and the model gets it."""
    seen = []

    class Seeing(ModelView):
        def __init__(self):
            self.inner = ShortTermMemory().open_view()

        def add(self, message, *, answered=False):
            seen.append(message.text)
            self.inner.add(message, answered=answered)

        def messages(self):
            return self.inner.messages()

    # block 29
    class Mine(Memory):
        def open_view(self):
            return Seeing()

    # end
    llm = ScriptedLLM(["Hello."])
    async with BareAgent("a", llm=llm, memory=Mine()) as agent:
        session = await agent.create_session("ada", "Hi")
        await session.wait_idle()
        assert [each.text for each in session.history] == ["Hi", "Hello."]
        assert seen[0] == "Hi"
    assert llm.chats[0].messages[-1].parts[0].text == "Hi"


async def test_blocks_33_and_34_handlers_are_triggered():
    """A program can call the handlers of a session with a tool result and with a reply."""
    received = []
    result = ToolResult(call_id="1", tool_name="x", content="42")
    async with BareAgent("a", llm=ScriptedLLM([])) as agent:
        session = await agent.create_session("ada")
        session.on_tool_result(lambda result, session: received.append((result.content, session.id)))
        session.on_conversation(lambda reply: received.append(reply.text))
        # block 33
        await session.inject(result)
        # end
        # block 34
        await session.inject(Reply(text="Hello."))
        # end
    assert received == [("42", session.id), "Hello."]


async def test_block_35_a_tool_is_run_by_hand():
    """The registry finds a tool by its name. `run` validates the arguments and returns the result."""
    agent = reacting()
    # block 35
    tool = agent.tools.get("FileSearchTool")
    result = await tool.run({"query": "x"})
    # end
    assert result == "found x"


async def test_block_37_handlers_of_words_and_results():
    """Handlers receive replies and tool results, as in the document."""
    texts, results = [], []
    async with reacting(INVOCATION, DIRECT) as agent:
        session = await agent.create_session("ada")
        # block 37
        session.on_conversation(texts.append)
        session.on_tool_result(results.append)
        # end
        await session.chat("Find x.")
        await session.wait_idle()
    assert ([each.text for each in texts], [each.content for each in results]) == (["Hello."], ["found x"])


def test_blocks_38_and_39_classifiers_of_bare_and_simple():
    """A program can implement the classifiers of Bare and Simple."""

    # block 38
    class BareClassifier(Classifier):
        def read(self, answer, view):
            return [SendReply(text=answer.text, message_type=view.profile.types[0].name)]

    # end
    assert BareClassifier().read(answer("Hi"), view())[0].message_type == "greeting"

    # block 39
    class SimpleClassifier(Classifier):
        def read(self, answer, view):
            parsed = json.loads(answer.text)
            kind, content = parsed["messageType"], parsed["content"]
            if kind == "TOOL_INVOCATION":
                return [CallTools([ToolCall(content["name"], content["parameters"])])]
            return [SendReply(text=content, message_type=kind)]

    # end
    said = json.dumps({"messageType": "TOOL_INVOCATION", "content": TOOL})
    assert SimpleClassifier().read(answer(said), view())[0].calls[0].name == "FileSearchTool"


async def test_block_44_a_basic_agent():
    """An agent is created with names of instructions and with tools."""
    # block 44
    basic_agent = BareAgent(
        "basic", llm=ScriptedLLM(["Hello."]), instructions=["greeting", "farewell"], tools=[file_search]
    )
    # end
    async with basic_agent:
        assert (await basic_agent.run("Hi")).message_type == "greeting"


async def test_block_45_an_agent_with_reason(tmp_path):
    """A ReAct agent is built from a folder with a brain.md."""
    folder = tmp_path / "smith"
    folder.mkdir()
    (folder / "brain.md").write_text("---\nname: smith\n---\n")
    # block 45
    react_agent = AgentBuilder.from_folder(folder).protocol("react").tools(file_search, agent_generator)
    agent = react_agent.llm(ScriptedLLM([INVOCATION, DIRECT])).build()
    # end
    async with agent:
        assert str(await agent.run("Find x.")) == "Hello."
