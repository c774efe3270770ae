"""The process of a command: its standard streams, its limit of open files, and SIGHUP."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time

import httpx2
import pytest

UNUSED = """
from actgent import BareAgent, Anthropic, OpenAI
clerk = BareAgent("clerk", role="a clerk", llm=OpenAI("any", base_url="http://127.0.0.1:9/v1", api_key="none"))
editor = BareAgent("editor", role="an editor", llm=Anthropic("any", base_url="http://127.0.0.1:9", api_key="none"))
"""
"""Program with agents of real clients, which call no model before the first message."""
TEAM = """
import sys
from actgent import BareAgent, ScriptedLLM
clerk = BareAgent("clerk", role="a clerk", llm=ScriptedLLM(["WORDS"], repeat=True))
"""
MAIN = [sys.executable, "-c", "from actgent.cli import main; main()"]


def run(arguments, *, cwd, preparation, **options):
    """Run a command in a new interpreter. `preparation` runs in the child before the command."""
    return subprocess.run(
        [*MAIN, *arguments], cwd=cwd, check=False, timeout=120, preexec_fn=preparation, **options
    )


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
@pytest.mark.parametrize("arguments", [["--version"], ["chat", "--offline"], ["token", "list"]])
def test_closed_standard_streams_cause_no_traceback(tmp_path, closed, arguments):
    """The closed streams are replaced by /dev/null."""

    def close():
        for number in closed:
            os.close(number)

    done = run(arguments, cwd=tmp_path, preparation=close, stdin=subprocess.DEVNULL, capture_output=True)
    reads_input = arguments[0] == "chat" and 0 in closed
    assert done.returncode == (2 if reads_input else 0)
    assert b"Traceback" not in done.stderr


def test_low_limit_of_open_files_is_an_error(tmp_path):
    """The command ends with code 2 and one line."""

    def lower():
        resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10))

    done = run(["chat", "--offline"], cwd=tmp_path, preparation=lower, input=b"hi\n", capture_output=True)
    assert done.returncode == 2
    assert re.fullmatch(rb"actgent: the limit of open files is 10.*`ulimit -n 1024`\n", done.stderr)


def test_a_low_soft_limit_of_open_files_is_raised(tmp_path):
    """A command raises its soft limit to the hard limit."""

    def lower():
        resource.setrlimit(resource.RLIMIT_NOFILE, (10, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    done = run(["chat", "--offline"], cwd=tmp_path, preparation=lower, input=b"hi\n", capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


@contextlib.contextmanager
def open_servers(folder):
    """Yield a function that starts `actgent serve` with a journal. The function returns the process, the address and a token."""
    (folder / "team.py").write_text(TEAM)
    (folder / "unused.py").write_text(UNUSED)
    started = []

    def start(*options, agents="team.py", hangup=signal.SIG_DFL, **settings):
        with (folder / "errors.txt").open("ab") as errors:
            command = [*MAIN, "serve", agents, "--journal", "agents.db", "--bind", "127.0.0.1:0", *options]
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # The tests may run under nohup themselves, which would be inherited.
                preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup),  # noqa: PLW1509 - no other thread here
                **settings,
            )
        started.append(process)
        text = ""
        while not ((url := re.search(r"at (http\S+)/v1", text)) and (token := re.search(r"(act_\S+)", text))):
            line = process.stdout.readline()
            assert line, (folder / "errors.txt").read_text()
            text += line
        return process, url[1], token[1]

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.fixture
def serve(tmp_path):
    """Return a function that starts servers in a folder of the test."""
    with open_servers(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def unused(tmp_path_factory):
    """Return the address, a token and the folder of a server without clients."""
    folder = tmp_path_factory.mktemp("unused")
    with open_servers(folder) as start:
        _, url, token = start(agents="unused.py")
        yield url, token, folder


def is_served(url):
    try:
        httpx2.get(f"{url}/v1/agents", timeout=5)
    except httpx2.HTTPError:
        return False
    return True


def wait_until_released(url):
    """Wait until no process answers at an address."""
    deadline = time.monotonic() + 60
    while is_served(url):
        assert time.monotonic() < deadline, f"a server still answers at {url}"
        time.sleep(0.05)


@pytest.mark.parametrize("options", [[], ["--reload"]])
def test_sighup_drains_a_server(serve, options):
    """A stream ends with its last event, and the exit code names the signal. All processes end."""
    process, url, token = serve(*options)
    with httpx2.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=120) as ada:
        assert ada.put("/v1/sessions/s1", json={"agent": "clerk"}).status_code == 201
        with ada.stream("GET", "/v1/sessions/s1/events") as stream:
            process.send_signal(signal.SIGHUP)
            assert "event: bye" in stream.read().decode()
    assert process.wait(timeout=120) == 128 + signal.SIGHUP
    assert not is_served(url)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_reload_server_ends_with_its_parent(serve, number):
    """After the parent process ends for any reason, the journal can be opened again."""
    process, url, _ = serve("--reload")
    process.send_signal(number)
    process.wait(timeout=120)
    wait_until_released(url)
    serve("--reload")


def test_an_ignored_sighup_stays_ignored(serve):
    """`nohup actgent serve` continues after its terminal is closed."""
    process, url, _ = serve(hangup=signal.SIG_IGN)
    process.send_signal(signal.SIGHUP)
    assert is_served(url)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (0, ["top", "--once", "--at", "URL"]),
        (0, ["top", "--once", "--json", "--at", "URL"]),
        (0, ["top", "--once", "--at", "agents.db"]),
        (0, ["webhooks", "list", "--at", "URL"]),
        (0, ["inspect", "agents.db"]),
        (1, ["watch", "s1", "--at", "URL"]),
        (1, ["webhooks", "redeliver", "x", "--at", "URL"]),
        (1, ["journal", "check", "agents.db"]),
    ],
)
def test_commands_against_an_unused_server(unused, commands, code, arguments):
    """The agents have real clients and no session. A command ends with 0, or with 1 and one line."""
    url, token, folder = unused
    done = commands.run(
        ["actgent", *(url if word == "URL" else word for word in arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"ACTGENT_TOKEN": token},
    )
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
