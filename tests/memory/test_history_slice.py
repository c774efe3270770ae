"""The messages of long conversations that models are shown."""

import trio

from actgent import BareAgent, ModelRequest, ScriptedLLM, open_runtime
from actgent.memory.history_slice import HistorySlice, followed_by
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.messages import ChatMessage, Message, Sender, Text


def said(number, role="user"):
    return ChatMessage(role, (Text(f"{number}"),))


def message(number, kind="user"):
    return Message(session_id="s", sender=Sender("ada", kind), parts=(Text(f"{number}"),))


def test_a_slice_behaves_like_a_tuple():
    """Length, indexes from both ends, slices, iteration and comparison."""
    messages = [said(number) for number in range(5)]
    front, end = (said("front"),), (said("end"), said("last"))
    shown = HistorySlice(messages, front=front) + end
    whole = (*front, *messages, *end)
    messages.append(said("later"))
    assert tuple(shown) == whole
    assert shown == whole
    assert len(shown) == len(whole)
    assert [shown[index] for index in range(-8, 8)] == [whole[index] for index in range(-8, 8)]
    assert shown[2:-1] == whole[2:-1]
    assert shown[::-2] == whole[::-2]
    assert list(reversed(shown)) == list(reversed(whole))
    assert repr(shown) == repr(whole)
    assert shown != whole[1:]
    assert shown != "text"
    assert followed_by(whole, said(1)) == (*whole, said(1))


def test_earlier_slices_do_not_change():
    """Later cuts and role changes of the last message do not modify an earlier slice."""
    view = ShortTermMemory(max_tokens=1000).open_view()
    for number in range(800):
        view.add(message(number))
    view.add(message("own", "assistant"), answered=True)
    shown = view.messages()
    before = tuple(shown)
    assert before[-1].role == "user"
    view.add(message("x" * 3500))
    assert tuple(shown) == before
    assert len(view.messages()) < 800


async def test_slices_of_long_conversations_make_no_copy():
    """A model call in a session of 10,000 messages copies no messages."""
    view = ShortTermMemory().open_view()
    for number in range(10_000):
        view.add(message(number))
    shown = view.messages()
    view.add(message("next"))
    again = view.messages()
    assert isinstance(shown, HistorySlice)
    assert shown._list is again._list
    assert (len(shown), len(again)) == (10_000, 10_001)


async def test_recorded_requests_do_not_change():
    """A request keeps its messages while the conversation grows, including a notice for one call only."""
    llm = ScriptedLLM(["yes"], repeat=True, keep=1000)
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("a", llm=llm))
        session = await agent.create_session("ada")
        for number in range(150):
            await agent.run(f"{number}", session=session, prompt=f"tail {number}")
        await trio.lowlevel.checkpoint()
    chats: list[ModelRequest] = llm.chats
    assert [len(chat.messages) for chat in chats] == [2 * number + 2 for number in range(150)]
    assert [chat.messages[-1].parts[0].text for chat in chats] == [f"tail {number}" for number in range(150)]
    assert [chat.messages[-2].parts[0].text for chat in chats] == [str(number) for number in range(150)]
