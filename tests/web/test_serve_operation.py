"""`actgent serve` as a service process: log, grace period, start without a database, invalid values."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import threading
import urllib.parse

import httpx2
import pytest

from tests.web.server_process import open_servers, until

TEAM = """
from pathlib import Path
import trio
from actgent import BareAgent, ScriptedLLM

async def answer(chat):
    Path("begun").touch()
    while not Path("go").exists():
        await trio.sleep(0.02)
    return "done"

clerk = BareAgent("clerk", llm=ScriptedLLM(["hello"], repeat=True))
slow = BareAgent("slow", llm=ScriptedLLM(answer), grace=0)
"""
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def serve(tmp_path, commands, no_keys):
    """Return a function that starts `actgent serve` in the test's folder. Standard error is a pipe."""
    (tmp_path / "team.py").write_text(TEAM)
    with open_servers(commands, tmp_path) as start:
        yield start


def client_of(url, token):
    return httpx2.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=120)


def end(process):
    """Send SIGTERM, check that the exit code is that of the signal, and return the rest of standard error."""
    process.send_signal(signal.SIGTERM)
    lines = process.stderr.read().decode().splitlines()
    assert process.wait(timeout=120) == 128 + signal.SIGTERM
    return lines


def test_json_log_has_requests_without_secrets(serve):
    """Each line of standard error is an object. Requests have their path template, and no id, query value or token."""
    process = serve("--log-format", "json")
    key = until(process.stdout, r"(act_\S+)")
    url = until(process.stderr, r"at (http\S+)/v1")
    with client_of(url, key) as ada:
        made = ada.put("/v1/sessions/private-id", json={"agent": "clerk"})
        ada.get("/v1/sessions?q=private-query")
        ada.get("/v1/health/ready")
        ada.get("/v1/metrics")
        ada.get("/private-path")
        ada.request("BREW", "/v1/agents")
    rows = [json.loads(line) for line in end(process)]
    assert all(re.fullmatch(TIME, row["time"]) and row["level"] and row["logger"] for row in rows)
    requests = [row for row in rows if row["logger"] == "actgent.access"]
    assert [(row["method"], row["path"], row["status"]) for row in requests] == [
        ("PUT", "/v1/sessions/{id}", 201),
        ("GET", "/v1/sessions", 200),
        ("GET", "none", 404),
        ("OTHER", "none", 405),
    ]
    assert requests[0]["request_id"] == made.headers["x-request-id"]
    assert all(row["ms"] >= 0 for row in requests)
    text = json.dumps(rows)
    assert "private" not in text
    assert key not in text


def test_text_log_has_time_and_level(serve):
    """With --log-level debug, probes are logged. With warning, only problems are logged."""
    process = serve("--log-level", "debug")
    url = until(process.stdout, r"at (http\S+)/v1")
    httpx2.get(f"{url}/v1/health/live")
    lines = end(process)
    assert all(re.match(rf"{TIME} (debug|info|warning|error) +actgent[\w.]*: ", line) for line in lines)
    assert [line for line in lines if "GET /v1/health/live 200 " in line]
    quiet = serve("--log-level", "warning")
    url = until(quiet.stdout, r"at (http\S+)/v1")
    httpx2.get(f"{url}/v1/agents")
    assert end(quiet) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--log-format", "xml"), "log-format"),
        (("--log-level", "loud"), "log-level"),
        (("--grace", "-1"), "grace"),
        (("--grace", "nan"), "grace"),
        (("--grace", "soon"), "grace"),
        (("--wait-for-journal", "-0.5"), "wait-for-journal"),
        (("--streams", "0"), "streams"),
        (("--rate", "0"), "rate"),
        (("--burst", "many"), "burst"),
    ],
)
def test_invalid_values_are_rejected(serve, arguments, named):
    """The error is one line that names the option, and the exit code is 2."""
    process = serve(*arguments)
    assert process.wait(timeout=120) == 2
    text = process.stderr.read().decode()
    assert re.fullmatch(r"actgent: [^\n]+\n", text)
    assert named in text


def test_turn_ends_within_the_grace(serve, tmp_path):
    """--grace applies to all agents, also to an agent with `grace=0`. The running turn ends, and the journal has its answer."""
    process = serve("--grace", "100", "--journal", "agents.db")
    url = until(process.stdout, r"at (http\S+)/v1")
    key = until(process.stdout, r"(act_\S+)")
    with client_of(url, key) as ada:
        ada.put("/v1/sessions/s1", json={"agent": "slow"})
        ada.post("/v1/sessions/s1/messages", json={"input": "x", "message_id": "m1"})
    _wait_for(tmp_path / "begun")
    process.send_signal(signal.SIGTERM)
    until(process.stderr, "(for at most 100 s)")
    (tmp_path / "go").touch()
    assert process.wait(timeout=120) == 128 + signal.SIGTERM
    again = serve("--journal", "agents.db")
    url = until(again.stdout, r"at (http\S+)/v1")
    key = until(again.stdout, r"(act_\S+)")
    with client_of(url, key) as ada:
        events = ada.get("/v1/sessions/s1/events", headers={"accept": "application/json"}).json()["items"]
    assert [each["event"] for each in events].count("turn") == 1
    assert events[-1]["event"] == "ended"


def test_turn_is_interrupted_after_the_grace(serve, tmp_path):
    """Without a grace period the process ends while a turn runs, and the next process resumes the turn."""
    process = serve("--grace", "0", "--journal", "agents.db")
    url = until(process.stdout, r"at (http\S+)/v1")
    key = until(process.stdout, r"(act_\S+)")
    with client_of(url, key) as ada:
        ada.put("/v1/sessions/s1", json={"agent": "slow"})
        ada.post("/v1/sessions/s1/messages", json={"input": "x", "message_id": "m1"})
    _wait_for(tmp_path / "begun")
    end(process)
    (tmp_path / "go").touch()
    again = serve("--journal", "agents.db")
    url = until(again.stdout, r"at (http\S+)/v1")
    key = until(again.stdout, r"(act_\S+)")
    with client_of(url, key) as ada:
        outcome = ada.get("/v1/sessions/s1/runs/m1", headers={"prefer": "wait=60"}).json()
    assert outcome["outcome"]["text"] == "done"


def test_rate_and_burst_limit_a_token(serve):
    """The request after the burst is rejected."""
    process = serve("--rate", "0.001", "--burst", "3")
    url = until(process.stdout, r"at (http\S+)/v1")
    key = until(process.stdout, r"(act_\S+)")
    with client_of(url, key) as ada:
        assert [ada.get("/v1/agents").status_code for _ in range(4)] == [200, 200, 200, 429]


def test_offline_folder_is_served_without_a_model(tmp_path, commands, no_keys):
    """With --offline a script answers for the folder's model. A Python file names its own model."""
    assert commands.run(["actgent", "new", "clerk"], cwd=tmp_path, capture_output=True).returncode == 0
    line = ["actgent", "serve", "clerk", "--offline", "--bind", "127.0.0.1:0"]
    with commands.popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        try:
            url = until(process.stdout, r"at (http\S+)/v1")
            key = until(process.stdout, r"(act_\S+)")
            with client_of(url, key) as ada:
                ada.put("/v1/sessions/s1", json={"agent": "clerk"})
                response = ada.post(
                    "/v1/sessions/s1/messages", json={"input": "hello"}, headers={"prefer": "wait=60"}
                )
            assert response.json()["status"] == "answered"
        finally:
            process.kill()
    (tmp_path / "team.py").write_text(TEAM)
    refused = commands.run(["actgent", "serve", "team.py", "--offline"], cwd=tmp_path, capture_output=True)
    assert (refused.returncode, b"--offline works only with agent folders" in refused.stderr) == (2, True)


def test_start_waits_for_the_database(serve, postgres_url):
    """The log reports that the database cannot be reached. The agents answer after the database is reachable."""
    parts = urllib.parse.urlsplit(postgres_url)
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    process = serve("--journal", postgres_url.replace(f":{parts.port}/", f":{port}/"))
    line = until(process.stderr, r"(.*trying again for \d+ s)")
    assert "refused" in line
    with socket.create_server(("127.0.0.1", port)) as listener:
        forwarding = threading.Thread(target=_forward, args=(listener, parts.hostname, parts.port))
        forwarding.start()
        try:
            url = until(process.stdout, r"at (http\S+)/v1")
            assert httpx2.get(f"{url}/v1/health/ready").status_code == 200
            end(process)
        finally:
            _shut_down(listener)
            forwarding.join()


def test_signal_ends_the_wait_for_the_database(serve):
    """No agent has started, so the process drains nothing."""
    pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    process = serve("--journal", f"postgres://ada:secret@127.0.0.1:{port}/x", "--wait-for-journal", "600")
    line = until(process.stderr, r"(.*trying again.*)")
    lines = [line, *end(process)]
    assert "secret" not in "".join(lines)


@pytest.mark.parametrize("seconds", ["0", "600"])
def test_permanent_database_error_fails_at_once(serve, postgres_url, seconds):
    """A nonexistent database is an error of the address."""
    address = postgres_url.replace("/test?", "/no_such_database?")
    assert address != postgres_url
    process = serve("--journal", address, "--wait-for-journal", seconds)
    assert process.wait(timeout=120) == 1
    text = process.stderr.read().decode()
    assert "no_such_database" in text
    assert "trying again" not in text


def test_zero_wait_fails_at_once(serve):
    """With --wait-for-journal 0 there is one attempt."""
    pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    process = serve("--journal", f"postgres://ada@127.0.0.1:{port}/x", "--wait-for-journal", "0")
    assert process.wait(timeout=120) == 1
    text = process.stderr.read().decode()
    assert "refused" in text
    assert "trying again" not in text


def _wait_for(path):
    while not path.exists():
        threading.Event().wait(0.02)


def _forward(listener, host, port):
    """Forward connections to a server until the listener is shut down. Then close all connections."""
    with contextlib.ExitStack() as connections:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                break
            connections.enter_context(client)
            server = connections.enter_context(socket.create_connection((host, port)))
            for source, target in ((client, server), (server, client)):
                pump = threading.Thread(target=_pump, args=(source, target))
                pump.start()
                connections.callback(pump.join)
            for each in (client, server):
                connections.callback(_shut_down, each)


def _pump(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    _shut_down(target)


def _shut_down(connection):
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
