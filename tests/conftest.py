"""What all tests share: where things are, and how hypothesis runs."""

import contextlib
import importlib.util
import itertools
import json
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "shared" / "data"

# A shared machine has no reliable clock, so no example has a deadline; on the integration machine
# the examples are the same at each run, so a failure there can be repeated here.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(autouse=True)
def _signals():
    """The handlers of a test's own are gone after it: a command that ends ignores signals, as would all it starts."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


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
