"""Python code in a sandbox: its limits and the tools that it calls."""

import os
import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from actgent import (
    ApprovalRequest,
    Approve,
    BareAgent,
    ConfigurationError,
    Image,
    Limits,
    Mode,
    Modes,
    Reject,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    open_runtime,
    tool,
)
from actgent.errors import ApprovalRequired, ToolError
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.testing import CrashingJournal
from actgent.toolsets.builtin import python_tool
from actgent.toolsets.builtin.python_sandbox_tool import MAX_CONCURRENT_RUNS

pytest.importorskip("pydantic_monty", reason="pip install 'actgent[sandbox]'")


async def run(code, **options):
    """Run code without an agent. Return its result."""
    return await python_tool(**options).execute({"code": code}, ToolContext())


def calling(code, *, call="c"):
    return [ToolCall("run_python", {"code": code}, id=call)]


async def result_of(code, *tools, options=None, **agent):
    """Return the result of code that an agent with these tools runs."""
    llm = ScriptedLLM([calling(code), "ok"])
    async with BareAgent("a", llm=llm, tools=[*tools, python_tool(**(options or {}))], **agent) as running:
        session = await running.create_session("ada")
        await running.run("go", session=session)
        return next(result for message in session.history for result in message.tool_results)


def recorded(effect="once", **options):
    """Return a tool that records its arguments, and the record."""
    calls = []

    @tool(thread=False, effect=effect, **options)
    def note(number: int, word: str = "") -> dict:
        """Note a number."""
        calls.append(number)
        return {"number": number, "word": word}

    return note, calls


# --- the code ----------------------------------------------------------------------------------


async def test_result_has_output_and_the_last_value():
    """Printed text precedes the last value. Without both, the result is "(no output)"."""
    assert await run("print('a')\n1 + 1") == "a\n2"
    assert await run("[1, {'b': None}]") == '[1, {"b": null}]'
    assert await run("x = 1") == "(no output)"
    assert await run("class A: pass\nA()") == "MontyClassProxy(name='A', attributes={})"


async def test_errors_have_their_line():
    """Runtime and syntax errors have their line, after the printed text."""
    with pytest.raises(ToolError, match=r"(?s)before\n.*line 2.*ZeroDivisionError"):
        await run("print('before')\n1 / 0")
    with pytest.raises(ToolError, match="SyntaxError"):
        await run("if")


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/shadow').read()",
        "open('/etc/passwd').read()",
        "from pathlib import Path\nPath('/etc/hostname').read_text()",
        "open('/tmp/actgent-escape', 'w').write('x')",
        "import os\nos.listdir('/')",
        "import os\nos.environ['ACTGENT_SECRET']",
        "import os\nos.getenv('ACTGENT_SECRET')",
        "import os\nos.system('id')",
        "import os\nos.fork()",
        "import socket",
        "import subprocess",
        "import ctypes",
        "import urllib.request",
        "__import__('os').system('id')",
        "eval(\"open('/etc/shadow').read()\")",
        'exec("import socket")',
        "().__class__.__bases__[0].__subclasses__()",
        "(lambda: 0).__globals__",
        "f'{run_python.__globals__}'",
        "'{0.__class__.__mro__}'.format(1)",
        "import sys\nsys.modules['os'].system('id')",
        "def f(): f()\nf()",
        "'a' * 10 ** 10",
        "[0] * 10 ** 10",
        "10 ** 10 ** 10",
        "x = []\nwhile True: x.append('a' * 1000000)",
    ],
)
async def test_code_cannot_reach_resources(code, monkeypatch):
    """Access to files, environment, processes and network, and excess memory, are errors of the code."""
    monkeypatch.setenv("ACTGENT_SECRET", "hunter2")
    with pytest.raises(ToolError) as refused:
        await run(code, seconds=3)
    assert "hunter2" not in str(refused.value)
    assert "root:" not in str(refused.value)


async def test_endless_code_ends():
    """Endless code ends at its time limit. Endless output is cut."""
    with pytest.raises(ToolError, match="TimeoutError"):
        await run("while True: pass", seconds=0.3)
    output = await run("for n in range(10_000): print('x' * 100)\n'end'", output=1000)
    assert output.endswith("[cut: the first 1,000 of 1,010,000 characters that it printed]\nend")
    assert len(output) < 1200


@pytest.mark.parametrize(
    "code",
    [
        "'x' * 1_000_000",
        "['x' * 1000] * 1000",
        "print('y' * 900)\n'x' * 1_000_000",
        "raise ValueError('x' * 1_000_000)",
        "print('y' * 5000)\nraise ValueError('x' * 1_000_000)",
    ],
)
async def test_output_is_bounded_in_all_forms(code):
    """One limit covers printed text, last value and error."""
    try:
        output = await run(code, output=1000)
    except ToolError as error:
        output = str(error)
    assert len(output) < 1500
    assert "[cut: " in output


async def test_a_cancelled_run_leaves_neither_process_nor_thread():
    """An endless loop is killed, and the cancelled call returns at once."""
    before = workers_besides(())
    threads = threading.active_count()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "while True: pass")
        with trio.fail_after(60):
            while not workers_besides(before):  # noqa: ASYNC110 - another process tells nobody
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert not workers_besides(before)
    with trio.fail_after(60):
        assert await run("1") == "1"
    assert threading.active_count() <= threads + 2


async def test_many_runs_use_no_default_thread():
    """Runs queue for their own slots and use no default thread. A queued run is cancelled at once."""
    texts = []

    async def one():
        with pytest.raises(ToolError, match="TimeoutError") as ended:
            await run("while True: pass", seconds=0.2)
        texts.append(ended.value)

    async with trio.open_nursery() as nursery:
        for _ in range(2 * MAX_CONCURRENT_RUNS):
            nursery.start_soon(one)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        with trio.move_on_after(0.01) as scope, trio.fail_after(60):
            await run("1")
    assert len(texts) == 2 * MAX_CONCURRENT_RUNS
    assert scope.cancelled_caught


def workers_besides(known):
    """Return the interpreter processes that this process has started since."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = path.read_text(encoding="ascii").rsplit(")", 1)
        except OSError:
            continue
        if path.parent.name not in known and int(rest.split()[1]) == os.getpid() and "monty" in name:
            found.append(path.parent.name)
    return found


def test_missing_package_error_names_the_extra(monkeypatch):
    """Without the package, the error names the extra to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"actgent\[sandbox\]"):
        python_tool()
    monkeypatch.undo()
    with pytest.raises(ConfigurationError, match="list of names"):
        python_tool(tools="search")


# --- tools as functions ------------------------------------------------------------------------


async def test_code_calls_tools_as_functions():
    """Code calls tools with positional and keyword arguments and can catch their errors.

    Twenty calls are one step.
    """
    note, calls = recorded()
    code = """
total = 0
for n in range(20):
    total += note(n, word='w')['number']
try:
    note('x')
except RuntimeError as error:
    print(str(error)[:30])
try:
    note(1, number=2)
except TypeError as error:
    print(error)
total"""
    result = await result_of(code, note)
    assert calls == list(range(20))
    assert result.error is None
    lines = result.content.split("\n")
    assert lines[0].startswith("note: ")
    assert lines[1:] == ["note(): it got two values for 'number'", "190"]
    assert result.mark


async def test_invalid_functions_of_python_code_are_rejected():
    """Cases: the tool itself, tools that were not passed, and unknown tools.

    Names are converted to identifiers.
    """
    note, calls = recorded()

    @tool(name="my-list.of", thread=False, effect="pure")
    def listed() -> list:
        """List."""
        return [1, "a"]

    result = await result_of("my_list_of()", listed)
    assert result.content == '[1, "a"]'
    for code in ("run_python(code='1')", "nothing()"):
        assert "NameError" in (await result_of(code, note)).error
    assert "NameError" in (await result_of("note(1)", note, options={"tools": ["my-list.of"]})).error
    assert calls == []


async def test_modes_apply_in_code():
    """A tool outside the mode is rejected, as in a direct call."""
    note, calls = recorded()
    llm = ScriptedLLM([calling("note(1)"), "ok"])
    runner = python_tool()
    agent = BareAgent(
        "a",
        llm=llm,
        tools=[note, runner],
        modes=Modes(Mode("look", tools=[runner]), ready=False, initial="look"),
    )
    async with agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        result = session.history[-2].tool_results[0]
    assert calls == []
    assert "note" in result.error
    assert "mode" in result.error


async def test_limits_apply_in_code():
    """Tool calls in code count against the limit, and a loop of calls ends the run."""
    note, calls = recorded()
    code = "while True:\n    try:\n        note(1)\n    except Exception:\n        pass"
    result = await result_of(code, note, limits=Limits(tool_calls=5))
    assert len(calls) == 4
    assert "tool_calls" in result.error or "LimitReached" in result.error


async def test_code_gets_a_text_for_an_image():
    """Code gets a text that describes the image."""

    @tool(thread=False, effect="pure")
    def photo() -> Image:
        """Take a photo."""
        return Image(media_type="image/png", data=b"\x89PNG\r\n\x1a\n")

    result = await result_of("photo()", photo)
    assert result.content == "[image: image/png, 8 bytes]"
    assert result.media == ()


# --- approvals and crashes -----------------------------------------------------------------------

CODE = """
first = note(1)
import random, time
paid = pay(amount=5)
print(first['number'], paid)
note(2)
[random.random(), time.time()]"""


def payments(paid):
    @tool(thread=False, effect="once", approval=ApprovalRequest("Pay?"))
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    return pay


@pytest.mark.parametrize("restarts", [False, True])
async def test_nested_call_in_code_may_need_an_approval(restarts, tmp_path):
    """The approval has the arguments of that call. Earlier calls are not repeated, even after a restart."""
    (note, calls), paid = recorded(), []
    journal = f"sqlite:///{tmp_path}/j.db"

    def agent(*steps):
        return BareAgent("a", llm=ScriptedLLM(list(steps)), tools=[note, payments(paid), python_tool()])

    async with open_runtime(journal=journal) as runtime:
        running = agent(calling(CODE), "ok")
        await runtime.start(running)
        session = await running.create_session("ada", session_id="s")
        await session.chat("go")
        await session.wait_idle()
        (approval,) = session.approvals
        assert approval.tool_name == "run_python"
        assert approval.question == "[call 2 of 'run_python': pay({\"amount\":5})] Pay?"
        assert (calls, paid) == ([1], [])
        if not restarts:
            await session.answer(approval.id, Approve())
            await session.wait_idle()
            result = session.history[-2].tool_results[0]
    if restarts:
        async with open_runtime(journal=journal) as runtime:
            running = agent("ok")
            await runtime.start(running)
            session = await running.open_session("s")
            await session.answer(approval.id, Approve())
            await session.wait_idle()
            result = session.history[-2].tool_results[0]
    assert (calls, paid) == ([1, 2], [5])
    assert result.error is None
    assert result.content.startswith("1 paid 5\n[0.")


async def test_rejection_ends_the_run():
    """The model gets the rejection. No later call of the code runs."""
    (note, calls), paid = recorded(), []
    llm = ScriptedLLM([calling(CODE), "ok"])
    async with BareAgent("a", llm=llm, tools=[note, payments(paid), python_tool()]) as agent:
        session = await agent.create_session("ada")
        await session.chat("go")
        await session.wait_idle()
        await session.answer(session.approvals[0].id, Reject("too much"))
        await session.wait_idle()
        result = session.history[-2].tool_results[0]
    assert (calls, paid) == ([1], [])
    assert "too much" in result.error


async def test_approval_is_valid_for_one_call():
    """The second payment needs its own approval. A question of a tool gets its own answer."""
    paid = []

    @tool(thread=False, effect="once")
    def who(context: ToolContext) -> str:
        """Ask for a name."""
        if context.approval is None:
            raise ApprovalRequired("Which name?", form={"type": "object"}, again=True)
        return f"{context.approval.question} {context.approval.content['name']}"

    code = "pay(amount=1)\npay(amount=1)\nwho()"
    async with BareAgent(
        "a", llm=ScriptedLLM([calling(code), "ok"]), tools=[payments(paid), who, python_tool()]
    ) as agent:
        session = await agent.create_session("ada")
        await session.chat("go")
        questions = []
        for answer in (Approve(), Approve(), Approve(content={"name": "Ada"})):
            await session.wait_idle()
            (approval,) = session.approvals
            questions.append(approval.question)
            assert len(paid) == len(questions) - 1
            await session.answer(approval.id, answer)
        await session.wait_idle()
        result = session.history[-2].tool_results[0]
    assert [question[:7] for question in questions] == ["[call 1", "[call 2", "[call 3"]
    assert paid == [1, 1]
    assert result.content == "Which name? Ada"


async def life(journal, code, calls):
    """Run a process: an agent whose model runs this code until it has a result, in a persistent session."""

    @tool(thread=False, effect="once")
    def note(number: int) -> int:
        """Note a number."""
        calls.append(number)
        return number

    def answer(chat):
        return "ok" if chat.messages[-1].role == "tool" else calling(code)

    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(answer), tools=[note, python_tool()]))
        session = await agent.ensure_session("s", "ada")
        if not session.history:
            await session.chat("go", message_id="m")
        await session.wait_idle()
        return [result for message in session.history for result in message.tool_results]


async def test_crash_at_any_write_repeats_no_call():
    """After a restart no completed call runs again: it has its result or an unknown outcome."""
    code = "a = note(1)\ntry:\n    b = note(2)\nexcept RuntimeError as error:\n    b = str(error)\n[a, b]"
    texts, deaths = set(), 0
    for writes in range(1, 40):
        calls = []
        async with MemoryJournal().running() as inner:
            dying = CrashingJournal(inner, writes)
            async with trio.open_nursery() as nursery:

                async def first(dying=dying, calls=calls, nursery=nursery):
                    await life(dying, code, calls)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(first)
                await dying.died.wait()
                nursery.cancel_scope.cancel()
            results = await life(inner, code, calls)
        assert len(calls) == len(set(calls)), (writes, calls)
        texts |= {result.error or result.content for result in results}
        if not dying.is_dead:
            break
        deaths += 1
    assert deaths > 5
    assert any("outcome is unknown" in text for text in texts), texts
    assert "[1, 2]" in texts
