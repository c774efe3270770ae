"""`actgent top` and `actgent watch` with a running server, a restarted server, and a journal that is in use."""

import io
import json
import os
import re
import subprocess
import sys
from functools import partial

import pexpect
import pytest
import trio
from rich.console import Console
from rich.text import Text

from actgent import BareAgent, ScriptedLLM, Webhook, new_webhook_secret
from actgent.cli.serving.top_command import fit_table

COMMAND = [sys.executable, "-c", "from actgent.cli import main; main()"]


async def run(*arguments, token="", code=0):
    """Return the standard output and standard error of a command."""
    env = {**os.environ, "ACTGENT_TOKEN": token, "COLUMNS": "200"}
    done = await trio.run_process(
        [*COMMAND, *arguments], capture_stdout=True, capture_stderr=True, check=False, env=env
    )
    output = done.stderr.decode()
    assert done.returncode == code, output
    assert "Traceback" not in output
    return done.stdout.decode() if code == 0 else output


async def say(client, words="hello", session="s1"):
    await client.put(f"/v1/sessions/{session}", json={"agent": "clerk"})
    response = await client.post(
        f"/v1/sessions/{session}/messages", json={"input": words}, headers={"prefer": "wait=20"}
    )
    assert response.status_code == 200, response.text


async def test_watch_shows_the_same_for_server_and_journal(serving, tmp_path):
    """Each event has its number from the API. A journal that is in use shows the same events. After a number, only later events are shown."""
    journal = f"{tmp_path}/a.db"
    async with serving(journal=f"sqlite:///{journal}") as served, served.client() as ada:
        await say(ada, "good \x1b[31mday")
        at = ("--at", served.gateway.url)
        remote = await run("watch", "s1", "--once", "--json", *at, token=served.tokens["ada"])
        local = await run("watch", "s1", "--once", "--json", "--at", journal)
        page = await ada.get("/v1/sessions/s1/events", headers={"accept": "application/json"})
        later = await run("watch", "s1", "--once", "--json", "--after", "2", "--at", journal)
        lines = await run("watch", "s1", "--once", *at, token=served.tokens["ada"])
        nowhere = await run("watch", "nothing", "--once", "--at", journal, code=2)
    assert "the journal has no session 'nothing': `actgent inspect` lists them" in nowhere
    rows = [json.loads(line) for line in remote.splitlines()]
    assert [json.loads(line) for line in local.splitlines()] == rows
    assert [(row["id"], row["event"]) for row in rows] == [
        (each["id"], each["event"]) for each in page.json()["items"]
    ]
    assert [json.loads(line) for line in later.splitlines()] == [row for row in rows if row["id"] > 2]
    assert re.search(r"^ +2  \d\d:\d\d:\d\d  message   ada: good \\x1b\[31mday$", lines, re.MULTILINE), lines
    assert re.search(r"^ +\d+  \d\d:\d\d:\d\d  reply     you said: good", lines, re.MULTILINE)


async def test_failed_webhooks_are_listed_and_redelivered(serving, receiving):
    """The command redelivers by the listed ids. After that the list is empty."""
    status = [503]
    with receiving(lambda *_: status[0]) as receiver:
        webhook = Webhook(
            receiver.url, secrets=[new_webhook_secret()], allow=["127.0.0.1"], pause=0.01, retry_timeout=0.01
        )
        async with serving(notify=[webhook]) as served, served.client() as ada, served.client("root") as root:
            at = {"token": served.tokens["root"]}, ("--at", served.gateway.url)
            assert "0 dead-lettered" in await run("webhooks", "list", *at[1], **at[0])
            await say(ada)
            with trio.fail_after(30):
                while not (await root.get("/v1/webhooks")).json()["items"][0]["failed"]:  # noqa: ASYNC110 - asked over HTTP
                    await trio.sleep(0.02)
            await run("webhooks", "list", *at[1], **at[0], code=1)
            wrong = await run("webhooks", "redeliver", "msg_none", *at[1], **at[0], code=1)
            assert "msg_none is not a dead-lettered delivery" in wrong
            status[0] = 204
            assert "1 sent again" in await run("webhooks", "redeliver", *at[1], **at[0])
            with trio.fail_after(30):
                while (await root.get("/v1/webhooks")).json()["items"][0]["failed"]:  # noqa: ASYNC110 - asked over HTTP
                    await trio.sleep(0.02)
            refused = await run("webhooks", "list", *at[1], token=served.tokens["ada"], code=1)
            assert "403" in refused
    assert len(receiver.got) == 1


async def test_watch_ends_with_the_session(serving, tmp_path):
    """New events are shown as they arrive, also from a journal."""
    journal = f"{tmp_path}/a.db"
    async with serving(journal=f"sqlite:///{journal}") as served, served.client() as ada:
        await say(ada)
        shown = {}

        async def watch(name, *arguments):
            shown[name] = await run("watch", "s1", *arguments, token=served.tokens["ada"])

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, "server", "--at", served.gateway.url)
                nursery.start_soon(watch, "journal", "--at", journal)
                await say(ada, "more")
                await ada.post("/v1/sessions/s1/close", json={})
    for text in shown.values():
        numbers = [int(found) for found in re.findall(r"^ +(\d+)  ", text, re.MULTILINE)]
        assert numbers == sorted(set(numbers))
        assert "ada: more" in text
        assert text.splitlines()[-1].split()[2] == "closed"


async def test_watch_resumes_after_a_server_restart(serving, tmp_path):
    """Each event is shown once."""
    journal, tokens, output = f"sqlite:///{tmp_path}/a.db", tmp_path / "tokens.toml", tmp_path / "shown"
    secret = write_token(tokens)
    bind, process = "127.0.0.1:0", None
    try:
        for text in ("one", "two"):
            async with serving(journal=journal, bind=bind, tokens=tokens) as served, served.client() as ada:
                bind = served.gateway.url.removeprefix("http://")
                ada.headers["authorization"] = f"Bearer {secret}"
                await say(ada, text)
                if process is None:
                    command = [*COMMAND, "watch", "s1", "--json", "--at", served.gateway.url]
                    with output.open("wb") as file:
                        env = {**os.environ, "ACTGENT_TOKEN": secret}
                        process = await trio.lowlevel.open_process(command, stdout=file, env=env)
                with trio.fail_after(60):
                    while f"you said: {text}" not in output.read_text():  # noqa: ASYNC110 - a process writes it
                        await trio.sleep(0.05)
        process.terminate()
        assert await process.wait() == 143
    finally:
        if process is not None and process.returncode is None:
            process.kill()
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    numbers = [row["id"] for row in rows]
    assert numbers == sorted(set(numbers))
    assert [row["data"]["text"] for row in rows if row["event"] == "reply"] == [
        "you said: one",
        "you said: two",
    ]


def write_token(file):
    from actgent.web.access_tokens import new_token, write_tokens

    secret, token = new_token("ada", owner="ada", scopes=["chat"])
    write_tokens(file, [token])
    return secret


async def test_top_shows_agents_once_in_a_pipe_and_as_json(serving):
    """The output has inboxes, sessions and pending approvals. Permitted tokens also see totals and all sessions."""
    async with serving() as served, served.client() as ada:
        await run(
            "top", "--once", "--at", served.gateway.url, token=served.tokens["root"]
        )  # starts the count
        await say(ada)
        at = ("--at", served.gateway.url)
        with trio.fail_after(60):
            while True:
                looked = json.loads(await run("top", "--once", "--json", *at, token=served.tokens["root"]))
                if looked["agents"]["clerk"]["turns"] == 1:
                    break
        text = await run("top", *at, token=served.tokens["root"])
        mine = await run("top", *at, token=served.tokens["ada"])
    assert looked["sessions"]["idle"] == 1
    row = re.search(r"^clerk +running +0/1000 +0 +0/100 +1 +0 +- +\$0.0000", text, re.MULTILINE)
    assert row, text
    assert "sessions: 1 idle" in text
    assert "sessions:" not in mine
    assert re.search(r"^clerk .* - +-$", mine.replace(" \n", "\n"), re.MULTILINE), mine


async def test_top_of_a_journal_shows_its_sessions(serving, tmp_path):
    """The output has the count of sessions by status, and the sessions, while agents use the journal."""
    async with serving(journal=f"sqlite:///{tmp_path}/a.db") as served, served.client() as ada:
        await say(ada)
        text = await run("top", "--at", f"{tmp_path}/a.db")
    assert "sessions: 1 idle" in text
    assert re.search(r"^s1 +clerk +ada +idle", text, re.MULTILINE)


async def test_top_without_agents_has_no_tables(serving, tmp_path):
    """A server without agents and a journal without sessions have no tables. Without webhooks, one short line is printed."""
    async with serving(agents=[], journal=f"sqlite:///{tmp_path}/a.db") as served:
        at = ("--at", served.gateway.url)
        token = {"ACTGENT_TOKEN": served.tokens["root"]}
        listed = await trio.run_process(
            [*COMMAND, "webhooks", "list", *at], capture_stderr=True, env=os.environ | token
        )
        shown = [
            await run("top", *at, token=served.tokens["root"]),
            await run("top", "--at", f"{tmp_path}/a.db"),
        ]
    assert b"the server has no webhooks" in listed.stderr
    assert shown == ["sessions: 0 idle, 0 working, 0 suspended, 0 closed\n"] * 2


async def test_top_refreshes_in_a_terminal(serving):
    """The view is drawn repeatedly, and Ctrl-C ends it."""
    agents = [BareAgent("clerk", llm=ScriptedLLM(lambda _: "x"))]
    async with serving(agents=agents) as served, served.client() as ada:
        env = {**os.environ, "ACTGENT_TOKEN": served.tokens["root"], "TERM": "xterm", "COLUMNS": "150"}
        command = [*COMMAND, "top", "--interval", "0.2", "--at", served.gateway.url]
        spawn = partial(
            pexpect.spawn,
            command[0],
            command[1:],
            env=env,
            encoding="utf-8",
            timeout=60,
            dimensions=(30, 150),
        )
        child = spawn()
        try:
            await trio.to_thread.run_sync(child.expect, r"clerk +running")
            await say(ada, session="s1")
            await trio.to_thread.run_sync(child.expect, "sessions: 1 idle")
            child.send("\x03")
            await trio.to_thread.run_sync(child.expect, pexpect.EOF)
        finally:
            await trio.to_thread.run_sync(partial(child.close, force=True))
    assert child.exitstatus == 130


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["top", "--at", "http://127.0.0.1:1"], 2, "requires an access token: set ACTGENT_TOKEN"),
        (
            ["top", "--at", "http://127.0.0.1:1", "--token-file", "none"],
            2,
            "be read: No such file or directory: none",
        ),
        (
            ["token", "new", "--name", "a", "--owner", "ada", "--file", "none/tokens.toml"],
            2,
            "token file none/tokens.toml cannot be written: No such file or directory",
        ),
        (["watch", "s1", "--at", "none.db"], 2, "no such file"),
    ],
)
async def test_mistakes_are_one_line(arguments, code, expected):
    """A mistake is one line."""
    assert expected in await run(*arguments, code=code)


async def test_unreachable_server_is_named(serving):
    """The error is one sentence without a traceback."""
    gone = await run("top", "--at", "http://127.0.0.1:1", token="act_x", code=1)
    assert "does not answer (ConnectError: all attempts to connect to " in gone
    assert "Connection refused)" in gone
    assert "check that `actgent serve` runs there" in gone
    gone = await run("watch", "s1", "--once", "--at", "127.0.0.1:1", token="act_x", code=1)
    assert "http://127.0.0.1:1 does not answer" in gone
    async with serving() as served:
        at = ("--at", served.gateway.url)
        secure = served.gateway.url.replace("http:", "https:")
        assert "(ConnectError: [SSL: " in await run("top", "--at", secure, token="act_x", code=1)
        assert "rejected the token (401)" in await run("top", *at, token="act_x", code=1)
        missing = await run("watch", "nothing", *at, token=served.tokens["ada"], code=1)
        assert f"session 'nothing' does not exist at {served.gateway.url}" in missing


@pytest.mark.parametrize("form", ["{host}", "{url}/", "{url}/v1", "{url}/#key=once_x", "{url}"])
async def test_printed_addresses_are_accepted(serving, form):
    """The addresses of the API and of the dashboard, with and without `http://`, name the same server."""
    async with serving() as served:
        url = served.gateway.url
        at = form.format(url=url, host=url.removeprefix("http://"))
        assert "clerk" in await run("top", "--once", "--at", at, token=served.tokens["root"])


ROW = {"agent": "researcher-with-a-long-name", "inbox": "12/1000", "people": "3", "spent": "$12.3456"}


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (80, {*ROW}),
        (39, {*ROW}),
        (38, {"agent", "inbox", "people"}),
        (29, {"agent", "inbox", "people"}),
        (28, {"agent", "inbox"}),
    ],
)
def test_narrow_terminals_omit_columns(width, columns):
    """A narrow terminal has fewer columns and shorter names. No figure is cut, and no line is longer than the terminal."""
    out = io.StringIO()
    table = fit_table([{name: Text(value) for name, value in ROW.items()}], width, ("spent", "people"))
    Console(file=out, width=width).print(table)
    head, row = out.getvalue().splitlines()
    assert set(head.split()) == columns
    assert all(len(line.rstrip()) <= width for line in (head, row))
    figures = row.split()[1:]
    assert figures == [ROW[name] for name in ROW if name in columns and name != "agent"]
    assert ROW["agent"].startswith(row.split()[0].rstrip("…"))


async def test_lost_server_is_reported_once(serving, tmp_path):
    """Many retries are reported once. The restored connection is reported once."""
    journal, tokens = f"sqlite:///{tmp_path}/a.db", tmp_path / "tokens.toml"
    secret = write_token(tokens)
    complaints = tmp_path / "complaints"
    async with serving(journal=journal, tokens=tokens) as served, served.client() as ada:
        bind = served.gateway.url.removeprefix("http://")
        ada.headers["authorization"] = f"Bearer {secret}"
        await say(ada, "one")
        command = [*COMMAND, "watch", "s1", "--at", bind]
        with complaints.open("wb") as file:
            env = {**os.environ, "ACTGENT_TOKEN": secret}
            process = await trio.lowlevel.open_process(
                command, stdout=subprocess.DEVNULL, stderr=file, env=env
            )
    try:
        with trio.fail_after(60):
            while "reconnecting" not in complaints.read_text():  # noqa: ASYNC110 - a process writes it
                await trio.sleep(0.05)
            await trio.sleep(2)  # time for two retries
            async with serving(journal=journal, bind=bind, tokens=tokens) as served, served.client() as ada:
                ada.headers["authorization"] = f"Bearer {secret}"
                await say(ada, "two")
                while "answers again" not in complaints.read_text():  # noqa: ASYNC110 - as above
                    await trio.sleep(0.05)
                told = complaints.read_text()
    finally:
        process.kill()
        await process.wait()
    assert [told.count(expected) for expected in ("reconnecting", "answers again")] == [1, 1]
