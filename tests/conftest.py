"""What all tests share: where things are, and how hypothesis runs."""

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

# A shared machine has no reliable clock, so no example has a deadline; on the integration machine
# the examples are the same at each run, so a failure there can be repeated here.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


# What is started in the background of a shell ignores Ctrl-C, and so would all that tests start, which press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONG = ("tests/docs/", "tests/typing/", "tests/cluster/", "tests/test_packaging.py", "tests/mutation/")
"""Where tests take long: they begin first, or one worker would wait for the other at the end."""


def pytest_collection_modifyitems(items):
    """Put what takes long in front; all else stays in its order."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_collection_finish():
    """Have the garbage collector pass over all that is there before the first test: looking at it takes half a second each time."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _signals():
    """The handlers of a test's own are gone after it: a command that ends ignores signals, as would all it starts."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


PATIENCE = 0.03
"""Seconds for which a clock that jumps waits for threads."""


@pytest.fixture
def autojump_clock(monkeypatch):
    """A clock that jumps when all tasks wait; while one waits for a thread, only after a while in which nothing came.

    Or it would be chance whether a function in a thread returns before the next deadline.
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
    """The folder of public recordings beside the repository; the test is skipped where it is absent."""
    if not DATA.is_dir():
        pytest.skip("the recordings in ../shared/data are not on this machine")
    return DATA


@pytest.fixture(scope="session")
def recorded_rows(data_folder: Path):
    """A function from a file's name to its rows: `recorded_rows("recordings.jsonl")`."""

    def read(name: str) -> list[dict[str, object]]:
        path = data_folder / name
        if not path.is_file():
            pytest.skip(f"{name} is not in ../shared/data")
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]

    return read


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No model's key or address is set, whatever the machine has; the monkeypatch, to set some."""
    for prefix in ("OPENAI", "ANTHROPIC", "LLM"):
        for name in [name for name in os.environ if name.startswith(f"{prefix}_")]:
            monkeypatch.delenv(name)
    return monkeypatch


SERVER = "postgres://postgres@127.0.0.1:5432/test"
_schemas = itertools.count()


@pytest.fixture
def postgres_url():
    """An address of a schema of its own, which is dropped afterwards; skips where no server answers."""
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
    """The address of an empty journal of each kind, or of empty memories."""
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/journal.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def lasting_url(url):
    """The address of an empty journal that another block can open again."""
    if url == "memory:":
        pytest.skip("a journal in memory ends with its block")
    return url


@pytest.fixture
def open_cluster():
    """A block with a `Cluster` of the test's own, without nodes; skips where its services are missing."""
    from .clusters import open_cluster

    return open_cluster


def _forking(*, has_command):
    spec = importlib.util.spec_from_file_location("fork_server", HERE / "fork_server.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with contextlib.closing(module.ForkServer(has_command=has_command)) as server:
        yield server


@pytest.fixture(scope="session")
def lives():
    """`lives.run(command)` and `lives.popen(command)` are those of `subprocess`, with actgent imported before: `fork_server.py`."""
    yield from _forking(has_command=False)


@pytest.fixture(scope="session")
def commands():
    """The same for `["actgent", ...]`, with the command line and the SDKs imported, too."""
    yield from _forking(has_command=True)


# --- a provider for programs that call trio.run themselves --------------------------------


@pytest.fixture
def loopback_provider(no_keys: pytest.MonkeyPatch):
    """Every provider's address leads to one on loopback, which lives in a thread with a trio of its own.

    For programs that call `trio.run` themselves. It asks for the sum of 2 and 3 where it is offered
    `add`, and otherwise answers in the form that the system prompt asks for.
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
"""What the provider on loopback answers before anything else; empty for each test."""


@pytest.fixture
def planned_answers():
    """Answers that the provider on loopback gives first, in their order."""
    PLANNED.clear()
    return PLANNED


def _answer(request):
    from actgent.messages import ToolCall

    if PLANNED:
        return PLANNED.popleft()
    offered = {spec.name for spec in request.chat.tools}
    if "add" in offered and not request.tool_results and "2 + 3" in request.text:
        return ToolCall("add", {"a": 2, "b": 3}, id="call_1")
    said = f"The answer is {request.tool_results[0].content if request.tool_results else 42}."
    return _in_react_form(said) if "primary_action" in request.chat.system else said


def _in_react_form(said):
    action = {"response_purpose": "DIRECT_RESPONSE", "response_description": said, "response_content": {}}
    return json.dumps({"question_nature": "SIMPLE", "context": "sums", "primary_action": action})


def pytest_terminal_summary(terminalreporter):
    """List the reasons of skipped tests with their counts, so that a missing service is seen."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    )
    if reasons:
        terminalreporter.section("skipped tests")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count:5}  {reason}")
