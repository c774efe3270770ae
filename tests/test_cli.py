"""The command line. Tests of signals, pipes and terminals run it as a separate process."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import trio
from rich.console import Console

from actgent import (
    ApprovalRequest,
    BareAgent,
    ConfigurationError,
    Image,
    ModelError,
    NotAuthorized,
    ScriptedLLM,
    Text,
    Token,
    ToolCall,
    ToolResult,
    tool,
)
from actgent.cli.chat_and_run_commands import answer, load_agent, open_agent
from actgent.cli.command_options import ChatOptions
from actgent.cli.demos.load_test import percentile, run_load_test
from actgent.cli.demos.scripted_models import TOOLS
from actgent.cli.demos.scripted_provider_process import open_script_process
from actgent.cli.main import app, main
from actgent.cli.model_selection import open_models
from actgent.cli.signal_handling import Shutdown, run_until_signalled
from actgent.cli.terminal_io import ConversationView, Lines, Terminal, one_line, printable
from actgent.interop import PROTOCOLS
from actgent.llm.model_interface import ModelRequest
from actgent.messages import ChatMessage
from actgent.testing import open_provider

ACTGENT = Path(sys.executable).with_name("actgent")
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
PATIENCE = 300
"""Seconds after which a test kills a command that hangs, also on a machine that is busy with other work."""


def environment(**more):
    """Return the environment of this process without keys and without variables that change the output of rich."""
    dropped = re.compile(r"(OPENAI|ANTHROPIC|LLM)_|NO_COLOR|FORCE_COLOR|TTY_|COLUMNS|TERM$")
    return {name: value for name, value in os.environ.items() if not dropped.match(name)} | more


@pytest.fixture(scope="module")
def actgent(commands):
    """Return a function that runs a command to its end: `actgent(*arguments, said="...", NAME="...")` sets input and variables."""

    def run(*arguments, said="", run=commands.run, **variables):
        return run(
            [ACTGENT, *arguments],
            input=said,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=environment(**variables),
        )

    return run


@pytest.fixture
def command(no_keys, capfd):
    """Return a function that runs a command in this process: `command(*arguments)`."""
    for name in set(os.environ) - set(environment()):
        no_keys.delenv(name)

    def run(*arguments, **variables):
        for name, value in variables.items():
            no_keys.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        return subprocess.CompletedProcess(arguments, ended.value.code, *capfd.readouterr())

    return run


@pytest.fixture
def started(commands):
    """Start a command with pipes. Kill it when the block exits if it still runs."""

    @contextlib.contextmanager
    def start(*arguments, popen=commands.popen, program=(ACTGENT,)):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with popen([*program, *arguments], **pipes, env=environment()) as process:
            watchdog = threading.Timer(PATIENCE, process.kill)
            watchdog.start()
            try:
                yield process
            finally:
                watchdog.cancel()
                process.kill()

    return start


def read_until(stream, text):
    """Return the output of a process up to a text."""
    read = b""
    while text not in read:
        piece = os.read(stream.fileno(), 4096)
        assert piece, read
        read += piece
    return read.decode()


# --- help and wrong use --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--help"], ["chat", "demo"]),
        (["demo", "--help"], ["--sessions", "--agents", "--live", "no API key"]),
        (["chat", "--help"], ["--model", "--base-url", "--offline", "Ctrl-C", "--limit-cost"]),
        (["run", "--help"], ["--limit-model-calls", "--limit-tokens", "--limit-seconds"]),
        ([], ["chat", "demo"]),
        (["--version"], ["0."]),
        pytest.param(["serve", "--help"], ["--protocols", *(each.name for each in PROTOCOLS)], id="serve"),
    ],
)
def test_each_command_has_help(arguments, answer, command):
    """Every command has help text, which is printed without importing a provider's SDK."""
    done = command(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert [word for word in answer if word not in done.stdout] == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nonsense"], "nonsense"),
        (["demo", "--nonsense"], "--nonsense"),
        (["demo", "--sessions", "0"], "--sessions"),
        (["demo", "--agents", "many"], "--agents"),
        (["demo", "--live"], "OPENAI_API_KEY"),
        (["demo", "--model", "openai:gpt-5.2"], "--live"),
        (["chat"], "--offline"),
        (["chat", "--model", "gpt-5.2"], "openai:MODEL"),
        (["chat", "--model", "anthropic:claude"], "ANTHROPIC_API_KEY"),
        (["chat", "--model", "openai:x", "--base-url", "nowhere"], "base_url"),
        (["chat", "--offline", "--system", "Be kind.", "--role", "poet"], "--role"),
        (["chat", "--offline", "--limit-model-calls", "0"], "--limit-model-calls"),
        (["chat", "--offline", "--limit-cost", "free"], "--limit-cost"),
        (["chat", "missing.py"], "missing.py"),
    ],
)
def test_usage_error_is_one_line_with_exit_code_2(arguments, named, command):
    """The line states the mistake or the remedy, without a traceback."""
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("actgent: ")
    assert done.stderr.count("\n") == 1
    assert named in done.stderr


def test_help_imports_no_sdk():
    """Slow imports happen only in the command that needs them."""
    code = (
        "import sys, actgent.cli.main; print(*sorted({'openai', 'anthropic', 'httpx2'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == ""


# --- the demo ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demonstration(actgent):
    """Run a small demo with a pipe as its output."""
    return actgent("demo", "--sessions", "30", "--agents", "3")


def test_demo_runs_its_three_parts(demonstration):
    """Without an API key, the demo uses both SDKs, an urgent message overtakes another, and the load test runs."""
    assert (demonstration.returncode, demonstration.stderr) == (0, "")
    shown = demonstration.stdout
    assert shown.count("17 * 23 = 391, and 1969-07-20 is a Sunday.") == 2
    order = [
        "another note is rejected",
        "urgent message",
        "interrupted",
        "Leave by the stairs",
        "note 1",
        "note 5",
    ]
    second = shown[shown.index("\n2. ") : shown.index("\n3. ")]
    assert re.search(".*".join(order), second, re.DOTALL), second
    rows = dict(re.findall(r"^ +(\S.*?)  +(\S.*?) *$", shown[shown.index("\n3. ") :], re.MULTILINE))
    assert rows["turns answered"] == rows["turns with the correct result"] == rows["tool calls"] == "60"
    assert rows["turns failed"] == "0"
    assert {
        "turns per second",
        "latency of a turn, p50",
        "latency of a turn, p99",
        "tokens in",
        "turns per second, the engine alone",
    } <= rows.keys()
    cost = {
        name: milliseconds(rows[f"CPU of a turn, {name}"])
        for name in ("with SDK and HTTP", "the engine alone")
    }
    assert 0 < cost["the engine alone"] < cost["with SDK and HTTP"]
    beyond = milliseconds(rows["latency without model calls, p50"])
    assert 0 < beyond < milliseconds(rows["latency of a turn, p50"])
    assert rows["memory of the process"].endswith(" MB")


def milliseconds(text):
    return float(text.removesuffix(" ms").replace(",", ""))


async def test_scripted_provider_runs_in_a_separate_process():
    """The process answers in each wire format while the block runs. It ends with the block, also after a kill."""
    chat = ModelRequest(messages=[ChatMessage("user", (Text("Who are you?"),))])
    async with open_script_process() as models:
        for model in models:
            assert "I am a script" in (await model.complete(chat)).text
    async with open_script_process() as models:
        (child,) = children()
        os.kill(child, signal.SIGKILL)
        with pytest.raises(ModelError):
            await models[0].complete(chat)
    assert children() == []


def children():
    """Return the processes that this process started and that run scripted providers."""
    lists = [each.read_text(encoding="ascii") for each in Path("/proc/self/task").glob("*/children")]
    found = " ".join(lists).split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found}
    return [pid for pid, command in commands.items() if b"scripted_provider_process" in command]


def test_demo_prints_plain_text_in_a_pipe(demonstration):
    """The output has no colours and no redrawn lines."""
    assert CONTROLS.findall(demonstration.stdout) == []


def test_live_demo_uses_the_configured_provider(loopback_url, command):
    """If the environment has the address of a provider, the same parts use this provider."""
    done = command("demo", "--live", "--sessions", "4", "--agents", "2", LLM_PROVIDER_URL=loopback_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "(openai:gpt-5.2)" in done.stdout
    assert "4 sessions on 2 agents" in done.stdout


def test_failed_demo_reports_the_error(command):
    """If the provider does not answer, a line on standard error names it, and the exit code is 1."""
    done = command("demo", "--live", LLM_PROVIDER_URL="http://127.0.0.1:9/v1")
    assert done.returncode == 1
    assert "no connection to 127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_output_pipe_is_no_error(started):
    """`actgent demo | head -1` ends like other programs, tested with real processes."""
    with started("demo", "--sessions", "10", popen=subprocess.Popen) as process:
        read_until(process.stdout, b"conversation")
        process.stdout.close()
        assert process.wait() == 141
        assert process.stderr.read() == b""


def test_ctrl_c_during_imports_prints_no_traceback():
    """Ctrl-C arrives in the first half second, before a signal handler is installed."""
    code = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'cyclopts': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from actgent.cli import main\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"")


def test_full_disk_is_one_line(commands):
    """Output that cannot be written is reported without a traceback."""
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        command = [ACTGENT, "chat", "--offline"]
        done = commands.run(command, input=b"Hello\n", stdout=full, stderr=subprocess.PIPE, env=environment())
    assert done.returncode == 1
    assert done.stderr == b"actgent: [Errno 28] No space left on device\n"


def test_unwritable_file_is_named(commands, tmp_path):
    """The error has the name of the file and the reason of the operating system."""
    run = partial(
        commands.run, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), cwd=tmp_path
    )
    run([ACTGENT, "chat", "--offline", "--journal", "a.db", "--session", "s1", "-m", "Hello"])
    done = run([ACTGENT, "journal", "export", "a.db", "none/x.sessions", "--session", "s1"])
    said = b"actgent: none/x.sessions cannot be written: No such file or directory\n"
    assert (done.returncode, done.stderr) == (2, said)


# --- chat ----------------------------------------------------------------------------------


@pytest.fixture
def loopback_url(process_server):
    """Yield the address of a provider in a separate process that answers every request with two words, or with one umlaut."""
    code = (
        "import trio\nfrom actgent.testing import open_provider\n"
        "async def main():\n"
        "    async with open_provider(lambda request: 'Sch\\u00f6n.' if request.text == 'Umlaut' else 'Certainly, sir.') as provider:\n"
        "        print(provider.openai_url, flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    with process_server.popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def test_chat_reads_lines_of_a_pipe(actgent):
    """Each line is a message, and empty lines are ignored. Answers and tool calls are printed as plain lines."""
    done = actgent(
        "chat", "--offline", said="What is 17 * 23?\n\n   \nWhat is 2 * 2?\n/quit\nWhat is 3 * 3?\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "tool: multiply(a=17, b=23) = 17 * 23 = 391",
        "17 * 23 = 391.",
        "tool: multiply(a=2, b=2) = 2 * 2 = 4",
        "2 * 2 = 4.",
    ]


def test_chat_limits_apply_to_the_conversation(actgent):
    """The second answer would be the third model call, so it is rejected."""
    text = "What is 17 * 23?\nWhat is 2 * 2?\n"
    done = actgent("chat", "--offline", "--limit-model-calls", "2", "--limit-seconds", "60", said=text)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "17 * 23 = 391."
    assert "limit of 2 model calls" in done.stderr


def test_chat_reads_a_file(tmp_path, commands):
    """Standard input may be a plain file, which an event loop cannot poll. The last line needs no line end."""
    (tmp_path / "said").write_text("What is 17 * 23?", encoding="utf-8")
    with (tmp_path / "said").open() as said:
        done = commands.run(
            [ACTGENT, "chat", "--offline"],
            stdin=said,
            capture_output=True,
            text=True,
            check=True,
            env=environment(),
        )
    assert done.stdout.endswith("17 * 23 = 391.\n")


def test_chat_with_a_model_by_name_and_address(loopback_url, actgent):
    """A model with a name and an address needs no API key, for example on a local server."""
    done = actgent("chat", "--model", "openai:any", "--base-url", loopback_url, said="Tea, please.\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Certainly, sir.\n", "")


def test_chat_replaces_unencodable_characters(loopback_url, actgent):
    """Characters that the output encoding lacks become question marks."""
    options = ["--model", "openai:any", "--base-url", loopback_url]
    done = actgent("chat", *options, said="Umlaut\n", run=subprocess.run, PYTHONIOENCODING="ascii:strict")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Sch?n.\n", "")


def test_chat_reports_closed_standard_input():
    """A closed standard input is an error message, not a traceback."""
    command = f"exec {ACTGENT} chat --offline <&-"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, env=environment()
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "actgent: standard input is closed: pass the message with -m TEXT\n"


def test_chat_continues_after_a_failure_and_exits_with_1(actgent):
    """Each unanswered message of a pipe is one line on standard error. The exit code is 1."""
    done = actgent("chat", "--model", "openai:any", "--base-url", "http://127.0.0.1:9/v1", said="One\nTwo\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert [line[:19] for line in done.stderr.splitlines()] == ["actgent: openai:any"] * 2


def test_json_output_has_one_object_per_line(actgent):
    """The objects are a tool call, a reply with usage, and a failure."""
    done = actgent("chat", "--offline", "--json", said="What is 17 * 23?\nHello\n")
    assert (done.returncode, done.stderr) == (0, "")
    call, reply, second = map(json.loads, done.stdout.splitlines())
    assert (call["type"], call["tool"], call["arguments"]) == ("tool_result", "multiply", {"a": 17, "b": 23})
    assert (reply["type"], reply["text"], second["type"]) == ("reply", "17 * 23 = 391.", "reply")
    assert reply["usage"]["input_tokens"] > 0
    assert len({each["session"] for each in (call, reply, second)}) == 1
    done = actgent(
        "chat", "Hello there", "--json", "--model", "openai:any", "--base-url", "http://127.0.0.1:9/v1"
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["kind"] == "model"


def test_single_message_from_argument_or_pipe(actgent):
    """The command reads no further input. Two messages, one from each source, are an error."""
    done = actgent("chat", "What is 17 * 23?", "--offline", said="What is 2 * 2?\n")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "17 * 23 = 391.")
    done = actgent("chat", "-m", "-", "--offline", said="What is 2 * 3,\nand 4 * 5?\n")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "2 * 3 = 6, and 4 * 5 = 20.")


async def test_attachment_is_sent_with_the_first_message(commands, tmp_path):
    """A picture is sent in the format of the provider, and a text file as text of the message."""
    picture = b"\x89PNG\r\n\x1a\n" + bytes(20)
    (tmp_path / "photo.png").write_bytes(picture)
    (tmp_path / "notes.txt").write_text("milk", encoding="utf-8")
    seen = []

    def look(request):
        seen.append([part for message in request.chat.messages for part in message.parts])
        return "I see."

    async with open_provider(look) as provider:
        command = [ACTGENT, "chat", "--model", "openai:any", "--base-url", provider.url_for("openai")]
        files = ["--attach", tmp_path / "photo.png", "--attach", tmp_path / "notes.txt"]
        run = partial(
            commands.run,
            [*command, *files, "-m", "What is it?"],
            capture_output=True,
            env=environment(OPENAI_API_KEY="x"),
        )
        done = await trio.to_thread.run_sync(run)
    assert (done.returncode, done.stdout) == (0, b"I see.\n"), done.stderr
    (parts,) = seen
    assert [part.data for part in parts if isinstance(part, Image)] == [picture]
    assert [part.text for part in parts if isinstance(part, Text)][-1] == "What is it?"
    assert "milk" in str(parts)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--continue"], "--journal"),
        (["--session", "ada"], "--journal"),
        (["--journal", "x.db", "--continue", "--session", "ada"], "exclude each other"),
        (["Hello there", "-m", "Hello"], "given twice"),
        (["Hello there", "--attach", "nothing.png"], "nothing.png"),
        (["Hello there", "--journal", "no/such/folder.db"], "folder.db"),
        (["nodir"], "no such file or folder"),
        (["nodir", "Hello"], "no such file or folder"),
    ],
)
def test_chat_usage_errors(arguments, named, command, tmp_path, monkeypatch):
    """The line states the mistake or the remedy."""
    monkeypatch.chdir(tmp_path)
    offline = [] if arguments[0] == "nodir" else ["--offline"]
    done = command("chat", *arguments, *offline)
    assert (done.returncode in (1, 2), done.stdout) == (True, "")
    assert done.stderr.startswith("actgent: ")
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


def test_continue_without_a_session_is_an_error(command, tmp_path, monkeypatch):
    """A new journal has no session."""
    monkeypatch.chdir(tmp_path)
    done = command("chat", "Hello there", "--offline", "--journal", "x.db", "--continue")
    assert (done.returncode, "no open session of agent 'assistant' to continue" in done.stderr) == (2, True)


def talk_on_a_terminal(popen, *arguments, keys, **variables):
    """Run a command on a terminal, type lines, and return the output of the terminal."""
    ours, theirs = pty.openpty()
    process = popen(
        [ACTGENT, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm", **variables),
    )
    os.close(theirs)
    shown, deadline = b"", time.monotonic() + PATIENCE
    for prompt, typed in keys:
        while prompt not in shown and time.monotonic() < deadline:
            if select.select([ours], [], [], 1)[0]:
                shown += os.read(ours, 4096)
        os.write(ours, typed)
    with contextlib.suppress(OSError):  # the error of a terminal whose other side is closed
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    return process.wait(PATIENCE), shown.decode().replace("\r\n", "\n")


def test_chat_on_a_terminal(commands):
    """The terminal shows a prompt, the streamed answer and tool calls. /quit ends the conversation."""
    keys = [(b">", b"What is 17 * 23?\n"), (b"391.", b"/quit\n")]
    code, shown = talk_on_a_terminal(commands.popen, "chat", "--offline", keys=keys)
    assert code == 0
    assert "Talking to assistant." in shown
    assert "17 * 23 = 391." in shown
    assert "\x1b[" in shown  # the tool call is dimmed


def test_no_color_disables_colours(commands):
    """Only bold and dim text remain."""
    _, shown = talk_on_a_terminal(commands.popen, "chat", "--offline", keys=[(b">", b"\x04")], NO_COLOR="1")
    assert re.findall(r"\x1b\[[\d;]*m", shown.replace("\x1b[0m", "").replace("\x1b[2m", "")) in (
        [],
        ["\x1b[1m"],
    )


# --- signals -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_ends_an_idle_chat(number, started):
    """No turn runs, so the first signal ends the process at once, tested with real processes."""
    with started("chat", "--offline", popen=subprocess.Popen) as process:
        process.stdin.write(b"Hello\n")
        process.stdin.flush()
        read_until(process.stdout, b"Both are tools.")
        process.send_signal(number)
        assert process.wait() == SIGNALS[number]
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("number", SIGNALS)
def test_first_signal_drains(number, started):
    """A running answer is completed, and the next line is not processed."""
    with started("chat", "--offline") as process:
        process.stdin.write(b"What is 17 * 23?\nWhat is 2 * 2?\n")
        process.stdin.flush()
        read_until(process.stdout, b"tool: multiply(a=17")
        process.send_signal(number)
        assert process.wait() == SIGNALS[number]
        assert process.stdout.read().decode().endswith("17 * 23 = 391.\n")


ENDLESS = """if True:
    from actgent.cli import main, signal_handling
    from actgent.cli.demos import demo, scripted_models
    from actgent.testing.provider import Slow

    def answer(request):
        return Slow(scripted_models.scripted_answer(request), gap=1e6 if "fire" in request.text else 0.02)

    demo.answer_with_delay, signal_handling.GRACE_SECONDS = answer, 1e6
    main(["demo"])
"""
"""The demo, where the answer to the urgent message and the grace period do not end."""


@pytest.mark.parametrize("number", SIGNALS)
def test_second_signal_cancels(number, started):
    """A long answer is interrupted, without a traceback."""
    with started(program=[sys.executable, "-c", ENDLESS]) as process:
        read_until(process.stdout, b"writing a long report")
        process.send_signal(number)
        read_until(process.stderr, b"force quit")
        process.send_signal(number)
        assert process.wait() == SIGNALS[number]
        assert b"Traceback" not in process.stderr.read()


async def test_drain_ends_after_the_grace(autojump_clock):
    """Turns that do not end within the grace are cancelled."""
    noticed = []

    async def command(shutdown: Shutdown) -> int:
        signal.raise_signal(signal.SIGTERM)
        with shutdown.interruptible():
            await trio.sleep_forever()
        assert shutdown.is_requested
        await trio.sleep_forever()

    assert await run_until_signalled(command, notice=noticed.append) == 143
    assert 10 <= trio.current_time() < 11
    assert noticed


async def test_command_reports_a_longer_shutdown(autojump_clock):
    """A message states the remaining time of the shutdown."""
    noticed = []

    async def command(shutdown: Shutdown) -> int:
        shutdown.grace = 40
        signal.raise_signal(signal.SIGTERM)
        with shutdown.interruptible():
            await trio.sleep_forever()
        await trio.sleep_forever()

    assert await run_until_signalled(command, notice=noticed.append) == 143
    assert 40 <= trio.current_time() < 41
    assert "for at most 40 s" in noticed[0]


async def test_exit_code_without_a_signal_is_the_commands():
    """The exception of the command is raised without an exception group."""

    async def command(shutdown: Shutdown) -> int:
        return 3

    async def broken(shutdown: Shutdown) -> int:
        raise NotAuthorized("the key is wrong")

    assert await run_until_signalled(command, notice=print) == 3
    with pytest.raises(NotAuthorized):
        await run_until_signalled(broken, notice=print)


# --- modules of the command line -------------------------------------------------------------


@pytest.fixture
def live(capsys):
    """Return a live terminal display and the buffer of its output."""
    terminal = Terminal()
    terminal.console = Console(force_terminal=True, color_system=None, highlight=False)
    return terminal, lambda: capsys.readouterr().out


async def test_retried_answer_starts_a_new_line(live):
    """The complete answer is shown once."""
    terminal, shown = live
    conversation = ConversationView(terminal)
    for token in (Token("Good mo", "r"), Token("Good ", "r", 1), Token("evening", "r", 1)):
        conversation.token(token.text, (token.reply_id, token.attempt))
    conversation.reply("Good evening")
    conversation.reply("Next")
    assert shown() == "Good mo\nGood evening\nNext\n"


async def test_tool_call_after_text_starts_a_new_line(live):
    """The interrupted text keeps its line."""
    terminal, shown = live
    conversation = ConversationView(terminal)
    conversation.token("Let me see", ("r", 0))
    conversation.tool(ToolResult(call_id="1", tool_name="find", content="a\nb"), {"what": "x\x1b[2J"})
    assert shown() == "Let me see\ntool: find(what='x\\x1b[2J') = a b\n"


def test_control_characters_are_escaped():
    """A model cannot move the cursor, ring the bell or overwrite a line. Text in all scripts is unchanged."""
    assert printable("\x1b[2Jhi\r\x07\x9b\x00") == "\\x1b[2Jhi\\x0d\\x07\\x9b\\x00"
    assert printable("größer\n\t日本 🙂") == "größer\n\t日本 🙂"
    assert one_line("a\n  b" + "c" * 10, limit=8) == "a bcc..."


async def test_pipe_lines_are_split_and_decoded():
    """Lines arrive in any portions, and invalid UTF-8 is replaced."""
    reading, writing = os.pipe()
    lines, received = Lines(reading), []

    async def receive() -> None:
        while (line := await lines.receive()) is not None:
            received.append(line)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        for piece in (b"on", b"e\r\ntwo\n\nth\xff", b"ree"):
            os.write(writing, piece)
            await trio.testing.wait_all_tasks_blocked()
        os.close(writing)
    os.close(reading)
    assert received == ["one", "two", "", "th\ufffdree"]


async def test_line_without_end_is_rejected():
    """A line has a maximum length, so memory use is bounded for any input."""
    endless = os.open("/dev/zero", os.O_RDONLY)
    with pytest.raises(ConfigurationError, match="1,000,000 bytes"):
        await Lines(endless).receive()
    os.close(endless)


async def test_failure_is_printed_on_standard_error(live, capsys):
    """A missing answer is a line on standard error."""
    terminal, _ = live
    async with BareAgent("a", llm=ScriptedLLM([NotAuthorized("the key is wrong")])) as agent:
        session = await agent.create_session("ada")
        assert not await answer(agent, session, "Hello", terminal)
    assert "the key is wrong" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "ran", "model_answer"),
    [
        (["y"], ["/tmp"], "swept /tmp"),
        (["maybe", "yes please", "", "n", "y"], [], "REJECTED"),
        (["n not today"], [], "not today"),
        (["e [1]", 'e {"path": 3}', 'e {"path": "/var"}'], ["/var"], "swept /var"),
        (["a it is clean"], [], "it is clean"),
        ([], [], "no user is available to approve"),
    ],
)
async def test_approval_is_decided_in_the_terminal(live, typed, ran, model_answer):
    """The terminal asks while the answer waits. An unclear line does not approve, and the arguments are shown as data."""
    terminal, shown = live
    swept, lines = [], iter([*typed, None, None])

    @tool(approval=ApprovalRequest("Sweep [red]now[/red]\x1b[2J?"))
    async def sweep(path: str) -> str:
        """Sweep a folder."""
        swept.append(path)
        return f"swept {path}"

    async def receive():
        await trio.lowlevel.checkpoint()
        return next(lines)

    llm = ScriptedLLM([ToolCall("sweep", {"path": "/tmp"}), lambda chat: chat.messages[-1].parts[0].text])
    async with BareAgent("a", llm=llm, tools=[sweep]) as agent:
        session = await agent.create_session("ada")
        assert await answer(agent, session, "Hello", terminal, receive=receive) is bool(typed)
    assert swept == ran
    text = shown()
    assert model_answer in text
    assert "[red]now[/red]\\x1b[2J?" in text


async def test_approval_is_rejected_in_a_pipe(live):
    """Without a terminal, the call is rejected, and the message counts as not answered."""
    terminal, _ = live
    ran = []

    @tool(approval=True)
    async def sweep() -> None:
        """Sweep."""
        ran.append(1)

    async with BareAgent("a", llm=ScriptedLLM([ToolCall("sweep", {}), "no"]), tools=[sweep]) as agent:
        session = await agent.create_session("ada")
        assert not await answer(agent, session, "Hello", terminal)
    assert ran == []


async def test_approvals_of_agent_tools_are_decided_in_place(live):
    """The terminal asks while the parent turn waits for the child agent."""
    terminal, shown = live
    ran = []

    @tool(approval=True)
    async def sweep() -> str:
        """Sweep."""
        ran.append(1)
        return "swept"

    async def receive():
        await trio.lowlevel.checkpoint()
        return "y"

    worker = BareAgent("worker", llm=ScriptedLLM([ToolCall("sweep", {}), "worked"]), tools=[sweep])
    lead = BareAgent(
        "lead", llm=ScriptedLLM([ToolCall("worker", {"task": "x"}), "done"]), tools=[worker.as_tool()]
    )
    async with lead:
        session = await lead.create_session("ada")
        assert await answer(lead, session, "Hello", terminal, receive=receive)
    assert ran == [1]
    assert "sweep({})" in shown()


async def test_load_test_counts_wrong_and_failed_turns(capsys):
    """Failed turns and wrong answers are counted separately, and the first error is named."""
    script = [
        ToolCall("multiply", {"a": 2, "b": 11}),
        "22",
        NotAuthorized("the key is wrong"),
        "23",
        "I pass",
    ]
    ok = await run_load_test([ScriptedLLM(script)], Terminal(), Shutdown(print), sessions=2, agents=1)
    printed = capsys.readouterr()
    assert not ok
    rows = dict(re.findall(r"^ +(\S.*?)  +(\S.*?) *$", printed.out, re.MULTILINE))
    assert (rows["turns answered"], rows["turns failed"]) == ("3", "1")
    assert "turns failed: 1; " in printed.err
    assert "the key is wrong" in printed.err


async def test_load_test_shows_a_progress_bar(live):
    """On a terminal, a bar shows the progress of the load test."""
    terminal, shown = live
    assert await run_load_test(
        [ScriptedLLM(["22"], repeat=True)], terminal, Shutdown(print), sessions=3, agents=2
    )
    assert re.search(r"turns .* \d/6 ", shown())


async def test_signal_during_the_load_test(capsys):
    """The running turns end, and no session starts another turn."""
    shutdown = Shutdown(print)

    def reply(chat: ModelRequest) -> str:
        shutdown.signal = signal.SIGTERM
        return "22"

    assert await run_load_test([ScriptedLLM(reply)], Terminal(), shutdown, sessions=3, agents=3)
    assert re.search(r"turns answered +3 ", capsys.readouterr().out)


def test_percentile_is_the_nearest_rank():
    """A percentile is the nearest rank, for one value and for many."""
    assert percentile([], 50) == 0
    assert percentile([7.0], 99) == 7
    assert percentile([float(n) for n in range(100, 0, -1)], 99) == 99
    assert percentile([1.0, 2.0], 50) == 1


@pytest.mark.parametrize(
    ("code", "place", "expected"),
    [
        ("import actgent\nx = 1", "", "defines no agent at its top level: write `agent = BareAgent"),
        (
            "from actgent import *\na = BareAgent('a', llm=ScriptedLLM(['x']))\nb = BareAgent('b', llm=ScriptedLLM(['x']))",
            "",
            "a, b",
        ),
        ("from actgent import *\na = BareAgent('a', llm=ScriptedLLM(['x']))", ":c", "a"),
        ("\n1 / 0", "", "ZeroDivisionError in line 2"),
        ("def", "", "SyntaxError in line 1"),
        ("\0", "", "team.py cannot be run: (SyntaxError|ValueError): source code"),
    ],
)
def test_file_without_an_agent_is_an_error(code, place, expected, tmp_path):
    """The error states which names the file defines, or the line of its mistake."""
    (tmp_path / "team.py").write_text(code, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=expected):
        load_agent(f"{tmp_path}/team.py{place}")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("chat", "hi", "--offline"),
            "no such file or folder: hi; expected a Python file that defines an agent",
        ),
        (("chat", "hi", "--model", "openai:gpt-5.2"), "to send a single word as a message, write `-m WORD`"),
        (("chat", "team.py", "how", "are"), "unexpected argument 'are': quote text that has spaces"),
        (
            ("serve", "team.py", "--port", "80"),
            "Unknown option: --port. Set the listening address of a server with --bind HOST:PORT. See",
        ),
        (("top", "--server", "http://h"), "Unknown option: --server. Name a running server with --at URL"),
        (("serve", "hi"), "(`actgent new NAME` creates one)\n"),
        (
            ("serve", "helper"),
            "no model is configured: set OPENAI_API_KEY, ANTHROPIC_API_KEY or LLM_PROVIDER_URL",
        ),
        (("run", "helper", "hi"), "no model is configured: name one with --model, set OPENAI_API_KEY"),
        (("journal", "export", "a.db"), "See `actgent journal export --help`."),
        (("token", "list"), "tokens.toml has no tokens: `actgent token new` creates one"),
        (("new", "My Agent"), "a letter first, not 'My Agent': write my-agent"),
        (("eval", "nothing"), "nothing does not exist: name a case file"),
        (("tools", "team.py"), "no tools in team.py"),
        (
            ("chat", "team.py:clrk"),
            "team.py defines several agents: choose one with team.py:NAME; did you mean 'clerk'?",
        ),
    ],
)
def test_typical_mistakes_name_the_remedy(arguments, expected, tmp_path, no_keys, capsys):
    """The line states the searched name or file and the command to type."""
    no_keys.chdir(tmp_path)
    (tmp_path / "helper").mkdir()
    (tmp_path / "helper" / "brain.md").write_text("---\nname: helper\n---\n", encoding="utf-8")
    code = "from actgent import *\nclerk = BareAgent('clerk', llm=ScriptedLLM(['x']))\nother = BareAgent('o', llm=ScriptedLLM(['x']))"
    (tmp_path / "team.py").write_text(code, encoding="utf-8")
    with pytest.raises(SystemExit):
        main(list(arguments))
    assert expected in " ".join(capsys.readouterr().err.split()) + "\n"


async def test_agent_is_loaded_from_a_file(tmp_path):
    """The only agent of a file needs no name. Several names of one agent count as one."""
    code = "from actgent import *\nagent = BareAgent('poet', llm=ScriptedLLM(['x']))\nsame = agent\n"
    (tmp_path / "poet.py").write_text(code, encoding="utf-8")
    async with open_agent(ChatOptions(file=f"{tmp_path}/poet.py")) as agent:
        assert agent.name == "poet"
    assert load_agent(f"{tmp_path}/poet.py:same").name == "poet"


async def test_system_prompt_is_not_a_template(no_keys):
    """Braces in it are plain text."""
    options = ChatOptions(offline=True, system="Say {{ nothing }} {% else.")
    async with open_agent(options) as agent:
        assert agent.system_prompt == "Say {{ nothing }} {% else."


async def test_models_by_name_are_closed(no_keys):
    """The `async with` block closes the clients."""
    async with open_models(["openai:any"], base_url="http://127.0.0.1:9/v1") as models:
        assert models[0].name == "openai:any"


def test_tools_of_the_demo_script():
    """The tools of the script compute results. An invalid date is an error of the tool."""
    multiply, weekday = TOOLS
    assert multiply(6, 7) == "6 * 7 = 42"
    assert weekday("2000-01-01") == "2000-01-01 is a Saturday"


def test_documented_commands_exist():
    """Each command that the documentation names exists."""
    assert {"demo", "chat"} <= set(app)
