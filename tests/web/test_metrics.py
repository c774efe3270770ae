"""Prometheus metrics."""

import re
import socket

import attrs
import pytest
import trio

from actgent import BareAgent, GatewayLimits, ProviderUnavailable, ScriptedLLM, ToolCall, tool
from actgent.support import span_names

ROW = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (-?[0-9.]+(?:e[+-]?[0-9]+)?)')


def parsed(text):
    """Return the samples of a text. Check the format: the lines of a metric are contiguous and follow its type."""
    kinds, found, over = {}, {}, set()
    current = None
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            over.add(current)
            assert name not in over
            kinds[name], current = kind, name
        elif not line.startswith("# HELP "):
            row = ROW.fullmatch(line)
            assert row, line
            base = row[1] if kinds[current] != "histogram" else re.sub("_(bucket|sum|count)$", "", row[1])
            assert base == current
            labels = frozenset(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', row[2] or ""))
            assert (row[1], labels) not in found
            found[row[1], labels] = float(row[3])
    return found


async def scrape(served, name="root"):
    async with served.client(name) as client:
        answer = await client.get("/v1/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return answer.text


def value(text, name, **labels):
    """Return the sum of the samples that have the labels."""
    expected = set(labels.items())
    return sum(number for (each, has), number in parsed(text).items() if each == name and expected <= has)


async def scrape_until(served, number, name, **labels):
    """Scrape repeatedly until a metric has the expected value, because events are counted with a delay."""
    with trio.fail_after(60):
        while value(text := await scrape(served), name, **labels) != number:  # noqa: ASYNC110 - asked over HTTP
            await trio.sleep(0.02)
    return text


async def test_metrics_have_the_names_of_the_conventions(served):
    """From the first request on, metrics count turns, model calls, tools, tokens and requests. They contain no session id and no text of users."""
    await scrape(served)
    async with served.client() as ada:
        await ada.put("/v1/sessions/canary-session", json={"agent": "clerk", "mode": "act"})
        for words in ("canary words", "deploy"):
            body = {"input": words, "message_id": f"canary-{words.split()[0]}"}
            await ada.post("/v1/sessions/canary-session/messages", json=body, headers={"prefer": "wait=20"})
        waiting = (await ada.get("/v1/approvals")).json()["items"]
        await scrape_until(served, 1, "actgent_approvals_open", gen_ai_agent_name="clerk")
        await ada.post(f"/v1/approvals/{waiting[0]['id']}/decision", json={"approve": {}})
        await ada.post(
            "/v1/sessions/canary-session/messages", json={"input": "bye"}, headers={"prefer": "wait=20"}
        )
    text = await scrape_until(served, 3, "actgent_turns_total", outcome="answered")
    assert value(text, "gen_ai_client_operation_duration_seconds_count", gen_ai_agent_name="clerk") == 4
    assert value(text, "gen_ai_client_token_usage_count", gen_ai_token_type="input") == 4
    assert value(text, "gen_ai_execute_tool_duration_seconds_count", gen_ai_tool_name="deploy") == 1
    assert value(text, "gen_ai_invoke_agent_duration_seconds_count", gen_ai_agent_name="clerk") == 3
    assert value(text, "actgent_approval_wait_seconds_count", decision="approved") == 1
    assert value(text, "actgent_sessions", state="idle") == 1
    assert value(text, "actgent_http_requests_total", route="/v1/sessions/{id}/messages", status="200") == 2
    assert "canary" not in text
    assert span_names.CALL_DURATION.replace(".", "_") in text


async def test_histogram_buckets_add_up(served):
    """Histogram buckets increase up to the count, which equals the bucket `+Inf`."""
    await scrape(served)
    async with served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        await ada.post("/v1/sessions/s1/messages", json={"input": "x"}, headers={"prefer": "wait=20"})
    name = "gen_ai_invoke_agent_duration_seconds"
    rows = parsed(await scrape_until(served, 1, f"{name}_count"))
    buckets = [
        (dict(labels)["le"], number) for (each, labels), number in rows.items() if each == f"{name}_bucket"
    ]
    numbers = [number for _, number in sorted(buckets, key=lambda pair: float(pair[0]))]
    assert numbers == sorted(numbers)
    assert numbers[-1] == dict(buckets)["+Inf"] == 1


@pytest.mark.parametrize(("name", "status"), [("ada", 403), ("reader", 403), ("root", 200)])
async def test_metrics_require_the_scope_metrics(served, name, status):
    """A token that reads sessions cannot read the metrics of all owners."""
    async with served.client(name) as client:
        assert (await client.get("/v1/metrics")).status_code == status


async def test_model_names_are_bounded_and_escaped(serving, monkeypatch):
    """Above the limit, series count as `other`. Quotes, backslashes and line ends in a label are escaped."""
    monkeypatch.setattr("actgent.web.prometheus_metrics.MAX_SERIES", 3)
    agents = [BareAgent(f"a{number}", llm=ScriptedLLM(lambda _: "x")) for number in range(5)]
    async with serving(agents=agents) as served:
        await scrape(served)
        async with served.client() as ada:
            for number in range(5):
                await ada.put(f"/v1/sessions/s{number}", json={"agent": f"a{number}"})
                response = await ada.post(
                    f"/v1/sessions/s{number}/messages", json={"input": "x"}, headers={"prefer": "wait=20"}
                )
                assert response.status_code == 200
        text = await scrape_until(served, 5, "actgent_turns_total")
    assert value(text, "actgent_turns_total", gen_ai_agent_name="other") == 2


def test_labels_are_escaped():
    """Labels are escaped as the text format requires."""
    from actgent.web.prometheus_metrics import to_row

    assert to_row("a", [("b", 'c"' + chr(92) + chr(10))], 1) == r'a{b="c\"\\\n"} 1'


async def test_streamed_answers_and_tool_calls_are_counted(serving):
    """Metrics contain the time to the first chunk of a streamed answer, the tool calls of a turn, and the journal's transactions."""

    @tool
    def look(place: str) -> str:
        """Look."""
        return f"seen {place}"

    script = [ToolCall("look", {"place": "a"}), ToolCall("look", {"place": "b"}), "found it " * 20, "alone"]
    agents = [BareAgent("clerk", llm=ScriptedLLM(script, chunk=5, chunk_delay=0.001), tools=[look])]
    async with serving(agents=agents) as served, served.client() as ada:
        before = value(await scrape(served), "actgent_journal_bytes")
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        async with ada.stream("GET", "/v1/sessions/s1/events") as stream:
            reading = stream.aiter_text()
            assert "retry" in await anext(reading)
            text = await scrape_until(served, 1, "actgent_http_streams")
            body = {"input": "look"}
            await ada.post("/v1/sessions/s1/messages", json=body, headers={"prefer": "wait=20"})
        text = await scrape_until(served, 1, "actgent_turns_total", outcome="answered")
        assert value(text, "gen_ai_client_operation_time_to_first_chunk_seconds_count") == 1
        assert 0 < value(text, "gen_ai_client_operation_time_to_first_chunk_seconds_sum") < 10
        assert value(text, "gen_ai_invoke_agent_tool_calls_sum", gen_ai_agent_name="clerk") == 2
        assert value(text, "gen_ai_invoke_agent_inference_calls_sum") == 3
        assert value(text, "actgent_journal_commit_seconds_count") > 3
        assert 0 < value(text, "actgent_journal_commit_seconds_sum") < 10
        assert value(text, "actgent_journal_bytes") > before + 300
        await scrape_until(served, 0, "actgent_http_streams")
        await ada.post("/v1/sessions/s1/messages", json={"input": "x"}, headers={"prefer": "wait=20"})
        text = await scrape_until(served, 2, "actgent_turns_total", outcome="answered")
        assert value(text, "gen_ai_client_operation_time_to_first_chunk_seconds_count") == 1


async def test_disconnected_slow_readers_are_counted(serving):
    """A reader that reads nothing counts once; a normal reader does not count."""
    limits = GatewayLimits(send_seconds=0.3, grace=1)
    long = BareAgent("clerk", llm=ScriptedLLM(["x" * 200_000] * 30), grace=0)
    async with serving(limits=limits, agents=[long]) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        mute = trio.socket.socket()
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = served.gateway.url.removeprefix("http://").split(":")
        await mute.connect((host, int(port)))
        head = f"GET /v1/sessions/s1/events HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {served.tokens['ada']}\r\n\r\n"
        await mute.send(head.encode())
        await scrape_until(served, 1, "actgent_http_streams")
        for _ in range(30):
            response = await ada.post(
                "/v1/sessions/s1/messages", json={"input": "x"}, headers={"prefer": "wait=20"}
            )
            assert response.status_code == 200
        await scrape_until(served, 1, "actgent_http_readers_cut_total")
        mute.close()
        assert (
            value(await scrape_until(served, 0, "actgent_http_streams"), "actgent_http_readers_cut_total")
            == 1
        )


@tool
def divide(number: int) -> float:
    """Divide by a number."""
    return 1 / number


def counting_agents():
    script = [ToolCall("divide", {"number": 0}), "it cannot be done", "done", ProviderUnavailable("down")]
    llm = PricedLLM(script)
    return [BareAgent("clerk", llm=llm, tools=[divide])]


class PricedLLM(ScriptedLLM):
    """A model whose answers cost half a dollar each."""

    async def complete(self, chat, **options):
        answer = await super().complete(chat, **options)
        return attrs.evolve(answer, usage=attrs.evolve(answer.usage, cost=0.5))


async def work(served):
    """Run three turns: one with a failed tool, one that is answered, and one with a failed model."""
    async with served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        for text in ("divide", "again", "and again"):
            await ada.post("/v1/sessions/s1/messages", json={"input": text}, headers={"prefer": "wait=20"})


TOTALS = {
    ("actgent_turns_total", "outcome", "answered"): 2,
    ("actgent_turns_total", "outcome", "model"): 1,
    ("actgent_tool_calls_total", "status", "error"): 1,
    ("actgent_spent_usd_total", "gen_ai_agent_name", "clerk"): 1.5,
}


def totals_in(text):
    return {key: value(text, key[0], **{key[1]: key[2]}) for key in TOTALS}


async def test_events_before_the_first_scrape_are_counted(serving):
    """The first scrape includes all events since the gateway opened."""
    async with serving(agents=counting_agents()) as served:
        await work(served)
        text = await scrape(served)
    assert totals_in(text) == TOTALS
    assert value(text, "gen_ai_invoke_agent_duration_seconds_count") == 3
    assert value(text, "gen_ai_client_token_usage_count", gen_ai_token_type="output") == 3
    assert value(text, "actgent_model_failures_total") == 1
    assert value(text, "actgent_inbox_wait_seconds_count") == 3


async def test_totals_and_errors_survive_a_restart(serving, tmp_path):
    """After a restart, totals and errors include the journal's records, and new events are added once."""
    journal = f"sqlite:///{tmp_path}/a.db"
    async with serving(agents=counting_agents(), journal=journal) as served:
        await work(served)
        async with served.client("root") as root:
            before = (await root.get("/v1/errors")).json()["items"]
    async with serving(agents=counting_agents(), journal=journal) as served:
        text = await scrape(served)
        assert totals_in(text) == TOTALS
        assert value(text, "actgent_journal_counted") == 1
        async with served.client("root") as root, served.client("bob") as bob:
            after = (await root.get("/v1/errors")).json()["items"]
            assert [each["kind"] for each in after] == ["model", "tool"]
            same = ("kind", "error", "text", "cause", "count", "agents", "tools", "sessions")
            assert [{name: each[name] for name in same} for each in after] == [
                {name: each[name] for name in same} for each in before
            ]
            assert (await bob.get("/v1/errors")).json()["items"] == []
            shown = (await root.get("/v1/statistics?totals=true")).json()["agents"]["clerk"]
            assert (shown["turns"], shown["spent_usd"]) == (3, 1.5)
        await work(served)
        assert totals_in(await scrape(served)) == {key: 2 * number for key, number in TOTALS.items()}


async def test_counting_does_not_change_journal_writes(serving):
    """A turn writes as few journal batches as without metrics."""
    async with serving() as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        await ada.post("/v1/sessions/s1/messages", json={"input": "x"}, headers={"prefer": "wait=20"})
        steps = await served.runtime.journal.read_batches("s1", agent="clerk")
        assert not served.runtime.stream.watched
    assert len(steps) == 3
