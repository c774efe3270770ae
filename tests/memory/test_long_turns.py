"""Long turns in small context windows: each request has the task, the last results and their calls."""

import itertools
import random
import re

import pytest
from hypothesis import given, settings, strategies as st

from actgent import (
    BareAgent,
    ConfigurationError,
    ContextOverflow,
    LimitReached,
    Limits,
    ModelResponse,
    PlanAgent,
    ScriptedLLM,
    ShortTermMemory,
    SlidingWindow,
    SummarizingMemory,
    Text,
    ToolCall,
    Usage,
    open_runtime,
    tool,
)
from actgent.memory.conversation_trimming import PROTECTED_RESULTS
from actgent.memory.history_processor_memory import ManagedMemory
from actgent.messages import Message, Sender, Thinking, ToolResult, count_characters
from actgent.testing import check_transcript

TASK = "Mend the parser of dates, and run all tests. "
ADA, AGENT, TOOLS = Sender("ada"), Sender("a", "assistant"), Sender("tools", "tool")
WORDS = "the parser reads a date of the form year month day and returns None where it is none".split()
LONG = Limits.for_long_turns(max_repeated_calls=1_000)


def text_of(rng, characters):
    """Return words and numbers as in files and listings."""
    found = []
    while sum(map(len, found)) + len(found) < characters:
        found.append(rng.choice(WORDS) if rng.random() < 0.8 else f"{rng.random():.6f}:")
    return " ".join(found)[:characters]


class Run:
    """A run like recorded software-engineering runs: one task, dozens of calls, long and short results."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.task = TASK + text_of(rng, rng.randint(3_000, 7_000))
        lengths = [45, 45, 200, 600, 2_000, 4_000, 10_000]
        self.results = [text_of(rng, rng.choice(lengths)) for _ in range(rng.randint(35, 97))]
        self.thoughts = [text_of(rng, rng.choice([80, 300, 900])) for _ in self.results]
        self.requests = []
        self.room = 0
        self.shares = []
        self.answer = self.play

    def agent(self, window, **options):
        @tool(effect="pure", thread=False)
        def look(number: int) -> str:
            """Look at something."""
            return self.results[number]

        self.room = window - min(4_096, window // 8)
        llm = ScriptedLLM(self.reply, context_window=window, keep=0)
        return BareAgent("a", llm=llm, tools=[look], limits=LONG, **options)

    def reply(self, chat):
        return self.answer(chat)

    def play(self, chat):
        assert check_transcript(chat.messages) == []
        self.requests.append(tuple(chat.messages))
        size = counted(chat)
        assert size <= self.room
        results = [p for message in chat.messages for p in message.parts if isinstance(p, ToolResult)]
        step = len(self.requests) - 1
        if len(self.requests) > 1 and not begins_with(self.requests[-1], self.requests[-2]):
            self.shares.append(size / self.room)
        last = min(step, PROTECTED_RESULTS)
        assert [each.call_id for each in results[-last:]] == [f"c{n}" for n in range(step - last, step)][
            -last:
        ]
        if step == len(self.results):
            return ModelResponse(parts=(Text("Done."),), usage=Usage(input_tokens=size, output_tokens=3))
        call = ToolCall("look", {"number": step}, f"c{step}")
        parts = (Text(self.thoughts[step]), call)
        used = Usage(input_tokens=size, output_tokens=len(self.thoughts[step]) // 4 + 15)
        return ModelResponse(parts=parts, stop="tool_calls", usage=used)


def counted(chat):
    """Return the tokens of a request by a provider's own rule."""
    characters = sum(count_characters(message.parts) for message in chat.messages)
    return int(60 + (len(chat.system) + len(str(chat.tools))) / 4 + characters / 3.6 + 4 * len(chat.messages))


def begins_with(request, other):
    return request[: len(other)] == other


def has(request, task):
    return any(isinstance(part, Text) and part.text == task for message in request for part in message.parts)


MEMORIES = {
    "default": lambda: None,
    "tokens": lambda: SlidingWindow(tokens=8_000),
    "turns": lambda: SlidingWindow(turns=3),
    "summaries": lambda: SummarizingMemory(
        llm=ScriptedLLM(["It went on."], repeat=True), keep=12, trigger=5_000
    ),
    "function": lambda: lambda history: history,
    "bounded": lambda: ManagedMemory(list, max_tokens=8_000),
}


@pytest.mark.parametrize("window", [32_000, 16_000])
@pytest.mark.parametrize("memory", sorted(MEMORIES))
async def test_every_request_of_a_long_turn_has_the_task_and_the_last_results(memory, window):
    """With each memory, a turn of dozens of calls keeps its task and completes."""
    run = Run(window)
    async with run.agent(window, memory=MEMORIES[memory]()) as agent:
        assert (await agent.run(run.task)).text == "Done."
    assert len(run.requests) == len(run.results) + 1
    assert all(has(request, run.task) for request in run.requests)
    assert run.shares


@pytest.mark.parametrize("seed", range(6))
async def test_cut_leaves_half_of_the_budget(seed):
    """After a cut a request uses 45 to 55 % of the budget, and cuts are rare.

    The last five results are complete.
    """
    run = Run(seed)
    async with run.agent(32_000) as agent:
        await agent.run(run.task)
    assert all(0.45 <= share <= 0.55 for share in run.shares), run.shares
    assert len(run.shares) <= len(run.requests) / 8
    for step, request in enumerate(run.requests):
        shown = {
            p.call_id: p.content for message in request for p in message.parts if isinstance(p, ToolResult)
        }
        for number in range(max(0, step - PROTECTED_RESULTS), step):
            assert shown[f"c{number}"] == run.results[number]


async def test_old_results_are_shortened_before_calls_are_dropped():
    """After the first cut every call is still shown."""
    run = Run(1)
    run.results = [text[:3_000] for text in run.results]
    run.thoughts = [text[:80] for text in run.thoughts]
    async with run.agent(32_000) as agent:
        await agent.run(run.task)
    pairs = list(itertools.pairwise(run.requests))
    before, after = next(pair for pair in pairs if not begins_with(pair[1], pair[0]))
    assert len(after) == len(before) + 2
    contents = [p.content for said in after for p in said.parts if isinstance(p, ToolResult)]
    assert any(
        re.search(r'\[the first \d+ of 3000 characters of result "c\d+"\]$', each) for each in contents
    )


def rounds_of(commands, results):
    """Return the messages of a turn whose arguments and results have these lengths."""
    task = said(ADA, Text(TASK))
    yield task
    ids = {"correlation_id": task.id, "causation_id": task.id}
    for number, (characters, size) in enumerate(zip(commands, results, strict=True)):
        yield said(AGENT, ToolCall("look", {"number": "n" * characters}, f"c{number}"), **ids)
        result = ToolResult(call_id=f"c{number}", tool_name="look", content="r" * size)
        yield said(TOOLS, result, **ids)


@pytest.mark.parametrize("place", [5, 18])
@pytest.mark.parametrize("memory", ["default", "bounded"])
def test_long_command_is_shortened_before_rounds_are_dropped(memory, place):
    """A command that contains a complete file displaces no other call or result, at any position."""
    kinds = {"default": ShortTermMemory, "bounded": lambda: ManagedMemory(list)}
    view, commands = kinds[memory]().open_view(), [10] * 20
    commands[place] = 60_000
    for message in rounds_of(commands, [900] * 20):
        view.add(message, answered=message.sender is ADA)
    view.messages()  # a managed memory calls its function
    assert view.shrink(0.5)
    shown = view.messages()
    results = [p.content for message in shown for p in message.parts if isinstance(p, ToolResult)]
    assert results == ["r" * 900] * 20
    arguments = [str(p.arguments) for message in shown for p in message.parts if isinstance(p, ToolCall)]
    assert [number for number, each in enumerate(arguments) if "not_shown" in each] == [place]


def test_a_long_task_does_not_displace_the_last_results():
    """A cut below the size of the task shortens the last results and omits none of them."""
    view = ShortTermMemory().open_view()
    task, *others = rounds_of([10] * 5, [3_000] * 5)
    task = said(ADA, Text(TASK * 2_000))
    view.add(task, answered=True)
    for message in others:
        view.add(message)
    assert view.shrink(0.4)
    results = [p for message in view.messages() for p in message.parts if isinstance(p, ToolResult)]
    assert [each.call_id for each in results] == [f"c{number}" for number in range(5)]
    assert any(len(each.content) < 3_000 for each in results)
    assert results[-1].content == "r" * 3_000


@pytest.mark.parametrize("memory", ["default", "tokens", "turns"])
async def test_request_is_equal_after_a_restart(memory, tmp_path):
    """A process that reads the session from its journal makes no new cut. The next request is identical."""
    shown = []
    for restarts in (False, True):
        run = Run(3)
        url = f"sqlite:///{tmp_path / str(restarts)}.db"
        async with open_runtime(journal=url) as runtime:
            agent = await runtime.start(run.agent(32_000, memory=MEMORIES[memory]()))
            session = await agent.create_session("ada", session_id="s")
            await agent.run(run.task, session=session)
            run.results = run.results[: len(run.requests)]
            if not restarts:
                await end(agent, session, run, shown)
        if restarts:
            async with open_runtime(journal=url) as runtime:
                agent = await runtime.start(run.agent(32_000, memory=MEMORIES[memory]()))
                await end(agent, await agent.open_session("s"), run, shown)
    assert run.shares
    assert shown[0] == shown[1]


async def end(agent, session, run, shown):
    """Send one more message and record the messages that the model is shown."""

    def answer(chat):
        shown.append(tuple(chat.messages))
        return "Bye."

    run.answer = answer
    await agent.run("Thank you.", session=session)


async def test_summary_is_shown_in_the_running_turn():
    """The summary is written during the turn and shown between the task and the last rounds."""
    run, read = Run(5), []

    def write(chat):
        read.append(chat.messages[0].parts[0].text)
        return f"Summary number {len(read)}."

    memory = SummarizingMemory(llm=ScriptedLLM(write), keep=12, trigger=5_000)
    async with run.agent(32_000, memory=memory) as agent:
        session = await agent.create_session("ada")
        await agent.run(run.task, session=session)
    assert len(read) > 1
    assert read[0].startswith("user: " + TASK)
    assert "Summary number 1." in read[1]
    texts = [part.text for message in run.requests[-1] for part in message.parts if isinstance(part, Text)]
    assert texts[0] == run.task
    assert f"Summary number {len(read)}." in texts[2] or f"Summary number {len(read) - 1}." in texts[2]
    assert max(map(counted_messages, run.requests)) < 16_000


def counted_messages(request):
    return sum(count_characters(message.parts) for message in request) / 3.6


async def test_a_shortened_result_is_read_from_the_record():
    """`read_result` finds the result by the id at the end of the shortened text."""
    run = Run(2)
    async with run.agent(16_000) as agent:
        session = await agent.create_session("ada")
        await agent.run(run.task, session=session)
        texts = [part for each in run.requests[-1] for part in each.parts if isinstance(part, ToolResult)]
        cut = next(each for each in texts if f'of result "{each.call_id}"]' in each.content)
        number = int(cut.call_id[1:])

        def answer(chat):
            if chat.messages[-1].role == "tool":
                return chat.messages[-1].parts[0].content
            return ToolCall("read_result", {"id": cut.call_id, "start": 900, "length": 200}, "r")

        run.answer = answer
        text = (await agent.run("Read on.", session=session)).text
    assert run.results[number][900:1_100] in text


async def test_task_longer_than_the_budget_ends_its_turn():
    """The turn ends with an error before a request is sent. The session continues with the next turn."""
    run = Run(0)
    async with run.agent(16_000) as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ContextOverflow, match=r"text of the user \(\d\d,\d\d\d\)"):
            await agent.run("words of a task " * 5_000, session=session)
        assert run.requests == []
        assert (await agent.run(run.task, session=session)).text == "Done."


async def test_last_user_message_is_shown_in_turns_of_other_agents():
    """Turns that other agents start still show the user's last message."""
    view = ShortTermMemory(max_tokens=2_000).open_view()
    view.add(said(ADA, Text(TASK)), answered=True)
    view.add(said(AGENT, Text("I ask others.")))
    for number in range(40):
        view.add(said(Sender("helper", "agent"), Text(f"report {number} ".ljust(900, "."))), answered=True)
        view.add(said(AGENT, Text(f"I read report {number}.")))
        assert has(view.messages(), TASK)
    assert len(view.messages()) < 30


async def test_a_planning_agent_keeps_the_task_when_its_turn_is_cut():
    """The prompt has few earlier messages but all messages of the turn that memory shows."""
    seen = []

    @tool(effect="pure", thread=False)
    def look(number: int) -> str:
        """Look at something."""
        return f"page {number} " * 300

    def answer(chat):
        seen.append(any(TASK in getattr(p, "text", "") for message in chat.messages for p in message.parts))
        return ToolCall("look", {"number": len(seen)}, f"c{len(seen)}") if len(seen) < 40 else "Done."

    agent = PlanAgent("p", llm=ScriptedLLM(answer, context_window=16_000, keep=0), tools=[look], limits=LONG)
    async with agent:
        session = await agent.create_session("ada")
        agent.configure(session, history=2)
        with pytest.raises(LimitReached):
            await agent.run(TASK, session=session, limits=Limits(model_calls=30))
    assert len(seen) == 30
    assert all(seen)


# --- any history -----------------------------------------------------------------------------


def said(sender, *parts, **options):
    return Message(session_id="s", sender=sender, parts=parts, **options)


sizes = st.sampled_from([5, 40, 300, 1_500, 6_000])
rounds = st.lists(
    st.tuples(sizes, st.lists(sizes, min_size=1, max_size=3), st.booleans(), st.booleans()), max_size=20
)


def steps(turns):
    """Yield the messages of turns with whether each is answered; None marks a request."""
    count = itertools.count()
    for number, (asked, calls) in enumerate(turns):
        task = said(ADA, Text(f"task {number} ".ljust(asked, "t")))
        yield task
        yield None
        for text, results, thinks, native in calls:
            ids = [f"c{next(count)}" for _ in results]
            thought = [Thinking("hm", "anthropic")] if thinks else []
            asking = [ToolCall("look", {}, each) for each in ids] if native else []
            yield said(
                AGENT, *thought, Text("w" * text), *asking, correlation_id=task.id, causation_id=task.id
            )
            found = [
                ToolResult(call_id=each, tool_name="look", content="r" * size, native=native)
                for each, size in zip(ids, results, strict=True)
            ]
            yield said(TOOLS, *found, correlation_id=task.id, causation_id=task.id)
            yield None
        yield said(AGENT, Text("answer"), correlation_id=task.id, causation_id=task.id)


@settings(max_examples=150)
@given(
    turns=st.lists(st.tuples(sizes, rounds), min_size=1, max_size=3),
    budget=st.integers(300, 8_000),
    kind=st.sampled_from(["short", "sliding", "turns", "summing", "function"]),
    shares=st.lists(st.floats(0, 0.9), max_size=6),
)
def test_views_keep_task_pairs_and_budget(turns, budget, kind, shares):
    """Random turns, budgets and cuts keep the task, pairs and budget.

    A saved and restored view shows the same messages.
    """
    memory = {
        "short": ShortTermMemory(max_tokens=budget),
        "sliding": SlidingWindow(tokens=budget),
        "turns": SlidingWindow(turns=2, tokens=budget),
        "summing": SummarizingMemory(max_tokens=budget),
        "function": ManagedMemory(list, max_tokens=budget),
    }[kind]
    view, left, task = memory.open_view(), list(shares), ""
    for step in steps(turns):
        if step is not None:
            if step.sender is ADA:
                task = step.text
            view.add(step, answered=step.sender is ADA)
            continue
        try:
            view.check_room()
        except ContextOverflow:
            return
        shown = view.messages()
        assert sum(count_characters(each.parts) for each in shown) <= budget * 4
        if left:
            view.shrink(left.pop())
        for request in (shown, view.messages()):
            assert check_transcript(request) == []
            assert has(request, task)
        if (saved := view.save()) is not None:
            view = memory.restore_view(saved)
            assert list(view.messages()) == list(request)


# --- limits ----------------------------------------------------------------------------------


async def test_limits_for_long_turns_allow_hundreds_of_calls():
    """The default ends a turn after 25 model calls."""
    run = Run(4)
    llm = ScriptedLLM(run.answer, context_window=128_000, keep=0)
    run.room = 128_000

    @tool(effect="pure", thread=False)
    def look(number: int) -> str:
        """Look at something."""
        return run.results[number]

    async with BareAgent("a", llm=llm, tools=[look]) as agent:
        with pytest.raises(LimitReached):
            await agent.run(run.task)
        run.requests.clear()
        assert (await agent.run(run.task, limits=Limits.for_long_turns(tokens=100_000_000))).text == "Done."
    assert Limits.for_long_turns(model_calls=30).model_calls == 30
    with pytest.raises(ConfigurationError, match="model_calls"):
        Limits.for_long_turns(model_calls=0)
