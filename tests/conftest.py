"""Shared fixtures, collection order, and the profiles of hypothesis."""

import collections
import contextlib
import gc
import importlib.util
import itertools
import json
import os
import queue
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "shared" / "data"

# A shared machine has no reliable clock, so an example has no deadline. On the integration machine,
# all runs have the same examples, so a failure there can be repeated on another machine.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


# A background process of a shell ignores Ctrl-C, and child processes inherit this. Tests send Ctrl-C to them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONG = (
    "tests/docs/test_browser.py",
    "tests/cluster/nodes/test_schedules.py",
    "tests/cluster/",
    "tests/test_packaging.py",
    "tests/web/test_serve.py",
    "tests/mutation/",
    "tests/typing/",
    "tests/docs/",
)
"""Slow test files and folders, the longest tests first. They start first, so that no worker waits for another at the end."""


def pytest_collection_modifyitems(items):
    """Move the slow tests to the front, in the order of `LONG`. The other tests keep their order."""
    items.sort(
        key=lambda item: next(
            (index for index, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG)
        )
    )


def pytest_collection_finish():
    """Exclude all objects that exist now from garbage collection. Each full collection of them takes half a second."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _signals():
    """Restore the signal handlers after each test. A command that ends ignores signals, and later processes would inherit this."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


PATIENCE = 0.03
"""Seconds of real time for which the autojump clock waits while a thread runs."""


@pytest.fixture
def autojump_clock(monkeypatch):
    """A clock that jumps when all tasks wait. It waits 0.03 s of real time before a jump while a thread runs.

    Without this pause, a function in a thread would return before or after the next deadline by chance.
    """
    clock, run_sync, waiting = trio.testing.MockClock(autojump_threshold=0), trio.to_thread.run_sync, [0]

    async def run_patiently(*args, **options):
        waiting[0] += 1
        clock.autojump_threshold = PATIENCE
        try:
            return await run_sync(*args, **options)
        finally:
            waiting[0] -= 1
            if not waiting[0]:
                clock.autojump_threshold = 0

    monkeypatch.setattr(trio.to_thread, "run_sync", run_patiently)
    return clock


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder of public recordings next to the repository. Skip the test if the folder does not exist."""
    if not DATA.is_dir():
        pytest.skip("the recordings in ../shared/data are not on this machine")
    return DATA


@pytest.fixture(scope="session")
def recorded_rows(data_folder: Path):
    """Return a function that reads the rows of a recording: `recorded_rows("recordings.jsonl")`."""

    def read(name: str) -> list[dict[str, object]]:
        path = data_folder / name
        if not path.is_file():
            pytest.skip(f"{name} is not in ../shared/data")
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]

    return read


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Remove the keys and addresses of model providers from the environment. Return the monkeypatch, so that a test can set some."""
    for prefix in ("OPENAI", "ANTHROPIC", "LLM"):
        for name in [name for name in os.environ if name.startswith(f"{prefix}_")]:
            monkeypatch.delenv(name)
    return monkeypatch


SERVER = "postgres://postgres@127.0.0.1:5432/test"
_schemas = itertools.count()


@pytest.fixture
def postgres_url():
    """Yield the address of a new schema, and drop the schema afterwards. Skip the test if no server answers."""
    psycopg = pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    try:
        connection = psycopg.connect(SERVER, autocommit=True, connect_timeout=3)
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL server at 127.0.0.1:5432: {error}")
    schema = f"actgent_test_{os.getpid()}_{next(_schemas)}"
    yield f"{SERVER}?schema={schema}"
    connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    connection.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request, tmp_path):
    """Return the address of an empty journal of each kind. It is also an address of empty long-term memories."""
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/journal.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def lasting_url(url):
    """Return the address of an empty journal that another `async with` block can open again."""
    if url == "memory:":
        pytest.skip("a journal in memory ends with its block")
    return url


@pytest.fixture
def open_cluster():
    """Return a context manager that yields a new `Cluster` without nodes. It skips the test if a service is missing."""
    from .clusters import open_cluster

    return open_cluster


@pytest.fixture(scope="session")
def process_server():
    """Yield a server with `run` and `popen` as in `subprocess`. It forks processes that have imported actgent: see `fork_server.py`."""
    spec = importlib.util.spec_from_file_location("fork_server", HERE / "fork_server.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with contextlib.closing(module.ForkServer()) as server:
        yield server


@pytest.fixture(scope="session")
def commands(process_server):
    """Return the process server, for commands `["actgent", ...]`."""
    return process_server


# --- a provider for programs that call trio.run themselves --------------------------------


@pytest.fixture
def loopback_provider(no_keys: pytest.MonkeyPatch):
    """Direct the address of every provider to a server on loopback, which runs in a thread with another trio loop.

    The server is for programs that call `trio.run` themselves. It asks for the sum of 2 and 3 if the request
    offers `add`. In other cases, it answers in the format that the system prompt requires.
    """
    started = queue.SimpleQueue()
    thread = threading.Thread(target=trio.run, args=(_provide, started), name="loopback provider")
    thread.start()
    provider, token, scope = started.get(timeout=10)
    for name in ("OPENAI", "ANTHROPIC", "GROQ"):
        no_keys.setenv(f"{name}_API_KEY", "loopback")
    no_keys.setenv("OPENAI_BASE_URL", provider.openai_url)
    no_keys.setenv("GROQ_BASE_URL", provider.openai_url)
    no_keys.setenv("ANTHROPIC_BASE_URL", provider.anthropic_url)
    yield provider
    token.run_sync_soon(scope.cancel)
    thread.join(timeout=10)


async def _provide(started):
    from actgent.testing import open_provider

    with trio.CancelScope() as scope:
        async with open_provider(_answer) as provider:
            started.put((provider, trio.lowlevel.current_trio_token(), scope))
            await trio.sleep_forever()


PLANNED = collections.deque()
"""Answers that the loopback provider sends first. The queue is empty at the start of each test."""


@pytest.fixture
def planned_answers():
    """Return the queue of answers that the loopback provider sends first, in their order."""
    PLANNED.clear()
    return PLANNED


def _answer(request):
    from actgent.messages import ToolCall

    if PLANNED:
        return PLANNED.popleft()
    offered = {spec.name for spec in request.chat.tools}
    if "add" in offered and not request.tool_results and "2 + 3" in request.text:
        return ToolCall("add", {"a": 2, "b": 3}, id="call_1")
    text = f"The answer is {request.tool_results[0].content if request.tool_results else 42}."
    return _in_react_form(text) if "primary_action" in request.chat.system else text


def _in_react_form(text):
    action = {"response_purpose": "DIRECT_RESPONSE", "response_description": text, "response_content": {}}
    return json.dumps({"question_nature": "SIMPLE", "context": "sums", "primary_action": action})


def pytest_terminal_summary(terminalreporter):
    """List the reasons of skipped tests with their counts, so that a missing service is visible."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    )
    if reasons:
        terminalreporter.section("skipped tests")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count:5}  {reason}")


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request, tmp_path):
    """Return the address of a journal that other processes can open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/journal.db"
    return request.getfixturevalue("postgres_url")
