"""Options of one turn or one session across a crash."""

import contextlib

import attrs
import trio

from actgent import BareAgent, ScriptedLLM, StepsAgent, ToolCall, open_runtime, tool
from actgent.errors import ActgentError
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.protocols.prompt_layers import PromptLayer
from actgent.testing import CrashingJournal


@attrs.frozen
class Sum:
    total: int


OPTIONS = (
    {"output": Sum, "temperature": 0.25, "max_tokens": 77},
    {"prompt": "Be brief.", "output": {"type": "object", "title": "page", "required": ["total"]}},
    {"prompt": PromptLayer("You count.", mode="replace"), "temperature": 0.0},
    {"model": "second"},
)


def make_agent(seen):
    """Return an agent that records its requests, calls a tool, and answers once in an invalid format."""

    @tool(effect="idempotent")
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        await trio.lowlevel.checkpoint()
        return a + b

    def answer(chat, model="first"):
        said = tuple(
            (m.role, tuple(getattr(part, "text", part.__class__) for part in m.parts)) for m in chat.messages
        )
        seen.append((chat.system, said, chat.temperature, chat.max_tokens, chat.response_format, model))
        last = max(index for index, (_, texts) in enumerate(said) if "question" in str(texts[0]))
        if len(said) - last < 3:
            return ToolCall("add", {"a": 2, "b": 3})
        return '{"total": 5}' if "Your last answer could not be used" in str(said[last:]) else "five"

    second = ScriptedLLM(lambda chat: answer(chat, "second"), keep=0)
    return BareAgent(
        "a",
        llm=ScriptedLLM(answer, keep=0),
        models={"second": second},
        tools=[add],
        temperature=0.5,
        output=None,
    )


async def _ask_all(journal, agent):
    """Send messages one by one in a session with its own system prompt. Return answers and failures."""
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", session_id="s", prompt="It is late.")
        for number, options in enumerate(OPTIONS):
            with contextlib.suppress(ActgentError):
                await agent.run(f"question {number}", session=session, **options)


async def test_a_resumed_turn_keeps_its_options(autojump_clock):
    """The options are model, schema, prompt, temperature and maximum tokens. The process dies at any write."""
    whole, resumed = [], 0
    async with MemoryJournal().running() as journal:
        await _ask_all(journal, make_agent(whole))
    assert {asked[2] for asked in whole} == {0.25, 0.5, 0.0}
    assert {asked[5] for asked in whole} == {"first", "second"}
    for writes in range(1, 100):
        async with MemoryJournal().running() as journal:
            dying = CrashingJournal(journal, writes)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_ask_all, dying, make_agent([]))
                with trio.move_on_after(1):
                    await dying.died.wait()
                nursery.cancel_scope.cancel()
            if not dying.is_dead:
                break
            seen = []
            async with open_runtime(journal=journal) as runtime:
                await runtime.start(make_agent(seen))
        assert [asked for asked in seen if asked not in whole] == [], writes
        resumed += bool(seen)
    assert resumed > 5


async def test_queued_messages_keep_their_options(autojump_clock):
    """The options survive a restart. Later messages use the agent's options."""
    seen = []
    async with MemoryJournal().running() as journal:
        dying = CrashingJournal(journal, 2)  # its opening and the message
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ask_all, dying, make_agent([]))
            with trio.move_on_after(1):
                await dying.died.wait()
            nursery.cancel_scope.cancel()
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make_agent(seen))
            session = await agent.open_session("s")
            await session.wait_idle()
            await session.chat("and now?")
            await session.wait_idle()
    assert [(asked[2], asked[3], asked[4] is None) for asked in (seen[0], seen[-1])] == [
        (0.25, 77, False),
        (0.5, None, True),
    ]
    assert {asked[0] for asked in seen} == {f"{agent.system_prompt}\n\nIt is late.".lstrip()}


async def test_conversation_keeps_added_messages_and_its_prompt(autojump_clock):
    """The effects of `add_message` and `set_system_prompt` survive a restart."""
    seen = []

    def make():
        def answer(chat):
            seen.append((chat.system, [part.text for message in chat.messages[:2] for part in message.parts]))
            return "Done."

        return StepsAgent("a", llm=ScriptedLLM(answer, keep=0))

    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make())
            conversation = await agent.open_conversation("ada")
            conversation.add_message("user", "My name is Ada.")
            conversation.add_message("assistant", "Good to know.")
            conversation.set_system_prompt("You are a clerk.")
            prompt, history = conversation.session._context.conversation.system, conversation.history
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make())
            session = await agent.open_session(conversation._session._held.id)
            assert session.history == history
            await session.chat("Who am I?")
            await session.wait_idle()
    assert "You are a clerk." in prompt
    assert seen[0] == (prompt, ["My name is Ada.", "Good to know."])
