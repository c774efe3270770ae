"""`actgent serve` and `actgent token`, as processes."""

import json
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from tests.web.server_process import open_processes, until

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
TEAM = """
from actgent import BareAgent, ScriptedLLM
clerk = BareAgent("clerk", llm=ScriptedLLM(lambda chat: "WORDS"))
"""


@pytest.fixture
def team(tmp_path, commands, no_keys):
    """Create a folder with a Python file of an agent. Return a function that starts `actgent` in the folder."""
    (tmp_path / "team.py").write_text(TEAM)
    with open_processes() as running:

        def start(*arguments):
            with (tmp_path / "errors.txt").open("ab") as errors:
                process = commands.popen(
                    ["actgent", *arguments], stdout=subprocess.PIPE, stderr=errors, cwd=tmp_path
                )
            running.append(process)
            return process

        yield start


def serve(start, *options, bind="127.0.0.1:0"):
    process = start("serve", "team.py", "--bind", bind, *options)
    return process, until(process.stdout, r"at (http\S+)/v1")


def client_of(url, token):
    return httpx2.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=120)


def test_agent_folder_is_served_with_tokens(team, tmp_path):
    """Tokens are created, listed, accepted and revoked. SIGTERM ends the process after the running turns."""
    made = team("token", "new", "--name", "ci", "--owner", "ada", "--days", "9")
    secret = made.stdout.readline().decode().strip()
    made.wait()
    assert secret not in (tmp_path / "tokens.toml").read_text()
    listed = team("token", "list")
    assert until(listed.stdout, r"^(ci: ada, chat, until \d+)")
    process, url = serve(team, "--tokens", "tokens.toml", "--journal", "agents.db")
    with client_of(url, secret) as ada:
        assert ada.put("/v1/sessions/s1", json={"agent": "clerk"}).status_code == 201
        response = ada.post("/v1/sessions/s1/messages", json={"input": "x"}, headers={"prefer": "wait=20"})
        assert response.json()["outcome"]["text"] == "WORDS"
        with ada.stream("GET", "/v1/sessions/s1/events") as stream:
            process.send_signal(signal.SIGTERM)
            text = stream.read().decode()
    assert "event: ended" in text
    assert "event: bye" in text
    assert process.wait(timeout=120) == 128 + signal.SIGTERM
    assert (tmp_path / "agents.db").exists()


def test_killed_server_loses_nothing(team):
    """A reader that resumes after kill -9 with its last number sees each event once. A repeated key sends the message once."""
    numbers, last, url = [], "0", None
    bind, keys = "127.0.0.1:0", iter(range(1000))
    for _ in range(4):
        process, url = serve(team, "--journal", "agents.db", bind=bind)
        bind = url.removeprefix("http://")
        secret = until(process.stdout, r"(act_\S+)")
        with client_of(url, secret) as ada:
            ada.put("/v1/sessions/s1", json={"agent": "clerk"})
            for _ in range(5):
                headers = {"idempotency-key": f"k{next(keys) // 2}", "prefer": "wait=20"}
                response = ada.post("/v1/sessions/s1/messages", json={"input": "x"}, headers=headers)
                assert response.json()["outcome"]["text"] == "WORDS"
            process.kill()
            process.wait()
        process, url = serve(team, "--journal", "agents.db", bind=bind)
        secret = until(process.stdout, r"(act_\S+)")
        with client_of(url, secret) as ada:
            page = ada.get(
                "/v1/sessions/s1/events", params={"after": last}, headers={"accept": "application/json"}
            )
            numbers += [each["id"] for each in page.json()["items"]]
            last = str(page.json()["cursor"])
            everything = ada.get(
                "/v1/sessions/s1/events?limit=500", headers={"accept": "application/json"}
            ).json()["items"]
        process.kill()
        process.wait()
    assert numbers == [each["id"] for each in everything]
    assert len([each for each in everything if each["event"] == "message"]) == 10


def test_run_of_an_outside_client_survives_a_killed_server(team):
    """A client that repeats its run after kill -9 gets the same answer, and the model is called once."""
    body = {"threadId": "t1", "runId": "r1", "messages": [{"id": "m", "role": "user", "content": "hello"}]}
    answers = []
    for _ in range(2):
        process, url = serve(team, "--journal", "agents.db")
        lines = [
            until(process.stdout, r"token.*: (act_\S+)"),
            until(process.stdout, r"OpenAI clients: (\S+)"),
        ]
        assert lines[1] == f"{url}/openai/v1"
        assert until(process.stdout, r"AG-UI clients: (\S+)") == f"{url}/agui/AGENT"
        with client_of(url, lines[0]) as client:
            text = client.post("/agui/clerk", json=body).text
            answers.append(re.findall(r'"delta":"([^"]*)"', text))
            said = client.get("/v1/sessions/t1/messages?roles=assistant").json()["items"]
        assert len(said) == 1
        process.kill()
        process.wait()
    assert "".join(answers[0]) == "".join(answers[1]) == "WORDS"


def test_protocols_of_outside_clients_can_be_selected(team):
    process, url = serve(team, "--protocols", "openai")
    token = until(process.stdout, r"token.*: (act_\S+)")
    with client_of(url, token) as client:
        assert client.get("/openai/v1/models").json()["data"][0]["id"] == "clerk"
        assert client.post("/agui/clerk", json={}).status_code == 404


def test_reload_serves_a_changed_file(team, tmp_path):
    """With --reload the agents of a changed file answer, under the same token."""
    process = team("serve", "team.py", "--bind", "127.0.0.1:0", "--reload")
    secret = until(process.stdout, r"(act_\S+)")
    url = until(process.stdout, r"at (http\S+)/v1")
    answers = []
    for expected in ("WORDS", "OTHER"):
        if expected == "OTHER":
            (tmp_path / "team.py").write_text(TEAM.replace("WORDS", expected) + "\n")
            url = until(process.stdout, r"at (http\S+)/v1")
        with client_of(url, secret) as ada:
            ada.put("/v1/sessions/s1", json={"agent": "clerk"})
            response = ada.post(
                "/v1/sessions/s1/messages", json={"input": "x"}, headers={"prefer": "wait=20"}
            )
            answers.append(response.json()["outcome"]["text"])
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 128 + signal.SIGTERM
    assert answers == ["WORDS", "OTHER"]


def test_reload_ignores_a_broken_file(team, tmp_path):
    """With --reload the previous agents answer until the changed file can be run, and its error is printed."""
    process = team("serve", "team.py", "--bind", "127.0.0.1:0", "--reload")
    secret = until(process.stdout, r"(act_\S+)")
    url = until(process.stdout, r"at (http\S+)/v1")
    (tmp_path / "team.py").write_text("from actgent import Nothing\n")
    with client_of(url, secret) as ada, (tmp_path / "errors.txt").open() as errors:
        text = ""
        while "previous agents keep running: team.py cannot be run: ImportError in line 1" not in text:
            text += errors.read()
            assert ada.get("/v1/agents/clerk").status_code == 200
            assert process.poll() is None
            time.sleep(0.05)
        (tmp_path / "team.py").write_text(TEAM.replace("clerk", "other"))
        url = until(process.stdout, r"at (http\S+)/v1")
    with client_of(url, secret) as ada:
        assert ada.get("/v1/agents/other").status_code == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 128 + signal.SIGTERM


def test_reload_waits_for_a_file_broken_at_the_start(team, tmp_path):
    """With --reload the output reports that no agent is served yet, and names the remedy."""
    (tmp_path / "team.py").write_text("from actgent import Nothing\n")
    process = team("serve", "team.py", "--bind", "127.0.0.1:0", "--reload")
    deadline = time.monotonic() + 60
    with (tmp_path / "errors.txt").open() as errors:
        text = ""
        while "no server is running: it restarts when a file changes" not in text:
            text += errors.read()
            assert process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
    assert "team.py cannot be run: ImportError in line 1" in text
    (tmp_path / "team.py").write_text(TEAM)
    assert until(process.stdout, r"at (http\S+)/v1")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 128 + signal.SIGTERM


def test_killed_server_loses_no_webhook(team, tmp_path, receiving):
    """With kill -9 at any moment, each reply is delivered at least once, under one id, in the order of its session."""
    chance = random.Random(15)
    with receiving(lambda *_: 200 if chance.random() < 0.8 else 503) as receiver:
        options = ("--notify", receiver.url, "--notify-secrets", "secrets", "--notify-allow", "127.0.0.1")
        expected = {f"s{number}": 0 for number in range(3)}
        for _ in range(4):
            process, url = serve(team, "--journal", "agents.db", *options)
            secret = until(process.stdout, r"(act_\S+)")
            with client_of(url, secret) as ada:
                for number in range(12):
                    session = f"s{number % 3}"
                    ada.put(f"/v1/sessions/{session}", json={"agent": "clerk"})
                    response = ada.post(
                        f"/v1/sessions/{session}/messages", json={"input": "x"}, headers={"prefer": "wait=20"}
                    )
                    assert response.json()["outcome"]["text"] == "WORDS"
                    expected[session] += 1
            process.kill()
            process.wait()
        process, _ = serve(team, "--journal", "agents.db", *options)
        received = {}
        deadline = time.monotonic() + 90
        while sum(map(len, received.values())) < sum(expected.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
            received = {session: {} for session in expected}
            for headers, body in list(receiver.got):
                data = body["data"]
                received[data["session_id"]].setdefault(headers["webhook-id"], data["number"])
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
    assert {session: len(ids) for session, ids in received.items()} == expected
    for ids in received.values():
        assert list(ids.values()) == sorted(ids.values())
        assert len(set(ids.values())) == len(ids)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("serve", "team.py", "--bind", "0.0.0.0:0"), "needs tokens.* as tokens= .--tokens"),
        (("serve", "team.py", "--bind", "8300"), "--bind.* must be HOST:PORT"),
        (("serve", "none.py"), "no such file"),
        (("serve", "team.py", "--tls-cert", "a.pem"), "require each other"),
        (
            ("serve", "team.py", "--tls-cert", "a.pem", "--tls-key", "b.pem"),
            "certificate a.pem and key b.pem cannot be read as PEM: No such file",
        ),
        (
            ("serve", "team.py", "--notify", "https://example.com", "--notify-secrets", "no/x"),
            "at no/x: No such file",
        ),
        (("serve", "team.py", "--tokens", "none.toml"), "cannot be read"),
        (("serve", "team.py", "--notify", "https://example.com"), "webhooks require --notify-secrets"),
        (("serve", "team.py", "--notify-allow", "10.0.0.0/8"), "require --notify"),
        (
            (
                "serve",
                "team.py",
                "--notify-sessions",
                "--notify-secrets",
                "x",
                "--notify-allow",
                "10.0.0.0/8",
            ),
            "--notify-sessions-allow",
        ),
        (("serve", "team.py", "--notify", "example", "--notify-secrets", "x"), "must be a URL such as"),
        pytest.param(
            ("serve", "team.py", "--protocols", "openai,agui"),
            "use openai, ag-ui, vercel, a2a, mcp, or none",
            id="arguments11-use openai, ag-ui, vercel, or none",
        ),
        (("token", "new", "--name", "a", "--owner", "b", "--scope", "cht"), "did you mean 'chat'"),
        (("token", "revoke", "nobody"), "has no token"),
        pytest.param(("watch", "s1", "--at", "gopher://x"), "--at must be http://HOST:PORT, ", id="scheme"),
    ],
)
def test_serve_mistakes_are_one_line(team, tmp_path, arguments, answer):
    """A mistake is one line and exit code 2."""
    assert team(*arguments).wait(timeout=120) == 2
    assert re.fullmatch(f"actgent: .*{answer}.*\n", (tmp_path / "errors.txt").read_text())


def test_help_does_not_import_the_web_packages():
    """The help of the command does not import the web packages."""
    import sys

    code = "import sys; from actgent.cli.main import app; app(['serve', '--help']); assert 'starlette' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert b"--tokens" in done.stdout


def test_service_manager_is_notified(team, tmp_path, monkeypatch):
    """The process notifies the service manager's socket at readiness and at shutdown."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        process, url = serve(team)
        assert manager.recv(100) == b"READY=1"
        assert httpx2.get(f"{url}/v1/health/ready").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert manager.recv(100) == b"STOPPING=1"
        assert process.wait(timeout=120) == 128 + signal.SIGTERM


def _commands():
    """Return the `actgent` command lines of the guides to deploying and securing."""
    for name in ("deployment.md", "securing.md"):
        for line in (GUIDES / name).read_text(encoding="utf-8").splitlines():
            entry = re.fullmatch(r"ENTRYPOINT (\[.*\])", line)
            words = (
                json.loads(entry[1])
                if entry
                else shlex.split(line)
                if "actgent " in line and not set(line) & set("|`")
                else []
            )
            places = [
                index for index, word in enumerate(words) if word.rpartition("/")[2].endswith("actgent")
            ]
            if places and words[places[0] + 1 : places[0] + 2] and words[0][:1] != "-":
                yield words[places[0] + 1 :]


def test_generated_requests_find_no_fault(team, tmp_path):
    """About 3,500 valid and invalid requests, which schemathesis derives from the OpenAPI document, cause no server error.

    Each response has a documented status, content type and schema. The time limit of a request ends the
    streams. The requests are the same in each run.
    """
    pytest.importorskip("schemathesis", reason="pip install 'actgent[dev]'")
    (tmp_path / "datasets").mkdir()
    options = "--journal agents.db --index --datasets datasets --rate 100000 --burst 100000"
    process, url = serve(team, *options.split())
    secret = until(process.stdout, r"(act_\S+)")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    settings = f"--checks {checks} --generation-deterministic --max-examples 3 --request-timeout 1 --continue-on-failure"
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/v1/openapi.json", *settings.split()]
    command += ["--header", f"Authorization: Bearer {secret}", "--no-color", "--warnings", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    (generated,) = re.findall(r"(\d+) generated", done.stdout)
    assert int(generated) > 1_000


def test_guides_name_existing_options(commands):
    """Each command line of a unit, container or shell in the guides uses existing commands and options."""
    from actgent.cli.main import app

    found = [
        arguments
        for arguments in _commands()
        if arguments[0] in ("serve", "token", "new", "check", "webhooks")
    ]
    assert {arguments[0] for arguments in found} >= {"serve", "token", "new", "check"}
    assert len(found) >= 7
    for arguments in found:
        command, _, _ = app.parse_args(arguments, print_error=False, exit_on_error=False)
        assert callable(command), arguments


def test_systemd_accepts_the_unit(tmp_path):
    """Checked by `systemd-analyze verify`, except for programs and users that are missing on this machine."""
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("there is no systemd-analyze on this machine")
    text = (GUIDES / "deployment.md").read_text(encoding="utf-8")
    (unit,) = re.findall(r"```ini\n(.*?)```", text, re.DOTALL)
    (tmp_path / "desk.service").write_text(unit.replace("/srv/desk/.venv/bin/actgent", sys.executable))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(tmp_path / "desk.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "desk.service" in line]
    assert ours == []
