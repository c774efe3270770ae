"""Models, protocols, memories and tools of a program, written with public names only."""

from collections.abc import Sequence
from typing import Any, ClassVar

import trio

from actgent import (
    LLM,
    Agent,
    CallTools,
    ChatMessage,
    Continue,
    Event,
    Fail,
    Finish,
    Memory,
    Message,
    ModelRequest,
    ModelResponse,
    ModelView,
    ParseError,
    Protocol,
    RateLimited,
    Request,
    ResponseFormat,
    SendReply,
    ShortTermMemory,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolContext,
    ToolHooks,
    ToolSpec,
    TurnView,
    UpdateState,
    Usage,
    extract_only,
    tool,
)


class Echo(LLM):
    """A model that repeats the last message, and calls its first tool once."""

    name = "echo:1"

    def __init__(self) -> None:
        self.chats: list[ModelRequest] = []

    async def complete(self, chat: ModelRequest, *, on_text: Any = None) -> ModelResponse:
        await trio.lowlevel.checkpoint()
        self.chats.append(chat)
        last: ChatMessage = chat.messages[-1]
        if chat.tools and not any(message.role == "tool" for message in chat.messages):
            spec: ToolSpec = chat.tools[0]
            return ModelResponse(parts=(ToolCall(spec.name, {"text": "hi"}),), stop="tool_calls")
        if last.role == "nobody":
            raise RateLimited("later", retry_after=1)
        text = "".join(part.text for part in last.parts if isinstance(part, Text))
        if on_text is not None:
            await on_text(text, 0)
        parts = (Thinking("hm", "echo"), Text(text or "done"))
        return ModelResponse(parts=parts, usage=Usage(input_tokens=1, output_tokens=1))


class Lines(Protocol):
    """A protocol of the program that returns every outcome."""

    name: ClassVar[str] = "lines"
    template: ClassVar[str] = "You are {{ profile.name }}."

    def request(self, view: TurnView) -> Request:
        form = ResponseFormat("line", {"type": "object"})
        return Request(tail='{"say": "it"}', response_format=form)

    def read(
        self, answer: ModelResponse, view: TurnView
    ) -> Sequence[SendReply | UpdateState | Continue | Fail | CallTools | Finish]:
        try:
            said = extract_only(answer.text, lambda value: None if "say" in value else "no say")
        except ParseError as error:
            return [Fail(error)]
        if view.stage is None:
            return [UpdateState(lambda _: ("told", 1)), Continue("again", '{"say": "it"}')]
        return [SendReply(text=said["say"]), Finish()]

    def partial(self, text: str) -> str | None:
        return None


class LastTwo(Memory):
    """A memory that shows the last two messages."""

    def open_view(self) -> ModelView:
        return TwoShown()


class TwoShown(ModelView):
    def __init__(self) -> None:
        self._shown: list[ChatMessage] = []
        self._whole = ShortTermMemory().open_view()

    def add(self, message: Message, *, answered: bool = False) -> None:
        role = "user" if message.sender.kind in ("user", "system") else "assistant"
        self._shown = [*self._shown, ChatMessage(role, message.parts)][-2:]
        self._whole.add(message, answered=answered)

    def messages(self) -> Sequence[ChatMessage]:
        return self._shown


class Shout(Tool):
    """A tool with hooks."""

    name = "shout"
    description = "Say it loud."
    parameters: ClassVar[dict[str, Any]] = {"type": "object", "properties": {"text": {"type": "string"}}}

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.hooks = (ToolHooks(on_start=lambda call: self.heard.append(call.name)),)

    async def execute(self, arguments: Any, context: ToolContext) -> object:
        await trio.lowlevel.checkpoint()
        return arguments["text"].upper()


async def test_custom_model_protocol_and_memory_work_together():
    """An agent with a custom model, protocol and memory answers, and the memory limits the messages that the model gets."""
    llm = Echo()
    async with Agent("tutor", llm=llm, protocol=Lines(), memory=LastTwo()) as agent:
        session = await agent.create_session("ada")
        events: list[Event] = []
        session.on_event(events.append)
        reply = await agent.run("go", session=session)
        assert (reply.text, session.state["told"]) == ("it", 1)
    assert [len(chat.messages) <= 3 for chat in llm.chats] == [True, True]
    assert llm.chats[0].response_format is not None


async def test_custom_tool_with_hooks_is_called():
    """The model gets the tool specification and the result, and the hook is called."""
    shout, llm = Shout(), Echo()
    async with Agent("tutor", llm=llm, tools=[shout]) as agent:
        await agent.run("go")
    assert shout.heard == ["shout"]
    assert llm.chats[1].messages[-1].parts[0].text == "HI"


def test_decorated_function_is_a_tool():
    """The decorator `tool` returns a `Tool`, so a function needs no class."""

    @tool
    def shout(text: str) -> str:
        """Say it loud."""
        return text.upper()

    assert isinstance(shout, Tool)
