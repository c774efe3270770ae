"""Figures that a node reports: takeovers by reason, resumed turns, and the time until it answers."""

import json
import logging
from datetime import UTC, datetime

import pytest
import trio

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from actgent import LLM, BareAgent, ModelResponse, Text, Usage, open_runtime
from actgent.cli.serving.cluster_administration import show_status
from actgent.cluster.cluster_member import DEFAULT_PARTITIONS
from actgent.events import PartitionsTaken
from actgent.journal.postgres.cluster_tables_reader import read_cluster_tables
from actgent.observe import Telemetry
from actgent.web.prometheus_metrics import Metrics, gauges_of

PATIENCE = 90
"""Seconds for a whole test on a loaded machine."""


class Held(LLM):
    """A model that sets `asked` and answers after `let` is set."""

    name = "held"

    def __init__(self):
        self.asked, self.let = trio.Event(), trio.Event()

    async def complete(self, chat, on_text=None):
        self.asked.set()
        await self.let.wait()
        return ModelResponse(parts=(Text("at last"),), usage=Usage(input_tokens=1, output_tokens=1))


class Place:
    """The cluster address for `actgent cluster`."""

    def __init__(self, cluster):
        self.cluster, self._cluster = cluster.pool, cluster

    def journal_url(self):
        return self._cluster.journal


class Terminal:
    """Collects the output lines of a command."""

    def __init__(self):
        self.lines = []

    def line(self, text):
        self.lines.append(text)

    raw = json_line = line


async def until(condition):
    while not condition():  # noqa: ASYNC110 - no event signals this state
        await trio.sleep(0.02)


async def cut_off(cluster, llm, scope, *, task_status):
    """Run a node that ends without a handover if its scope is cancelled."""
    with scope:
        async with cluster.node(BareAgent("clerk", llm=llm), node="first") as runtime:
            task_status.started(runtime)
            await trio.sleep_forever()


async def show(cluster, **options):
    terminal = Terminal()
    await show_status(Place(cluster), terminal, **options)
    return terminal.lines


async def until_written(cluster):
    """Wait until the database contains an unfinished session. A turn may begin before its write."""
    while not (await read_cluster_tables(cluster.journal, cluster.pool)).unfinished:  # noqa: ASYNC110 - as above
        await trio.sleep(0.02)


def takeovers_in(read):
    """Return the number of takeovers by reason from the OpenTelemetry metrics."""
    found = json.loads(read.get_metrics_data().to_json())
    metrics = found["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    (points,) = [
        each["data"]["data_points"] for each in metrics if each["name"] == "actgent.cluster.takeover.duration"
    ]
    return {each["attributes"]["actgent.cluster.reason"]: each["count"] for each in points}


async def test_takeover_is_reported(open_cluster, caplog):
    """The takeover appears in statistics, metrics, an event, OpenTelemetry and one log record. The turn resumes."""
    caplog.set_level(logging.INFO, logger="actgent")
    read = InMemoryMetricReader()
    telemetry = Telemetry(meter_provider=MeterProvider(metric_readers=[read]))
    first, second, scope = Held(), Held(), trio.CancelScope()
    second.let.set()
    with trio.fail_after(PATIENCE):
        async with open_cluster() as cluster, trio.open_nursery() as nursery, cluster.connect() as client:
            before = await nursery.start(cut_off, cluster, first, scope)
            session = await client.agent("clerk").create_session("ada", "well?")
            await first.asked.wait()
            await until(lambda: sum(before.cluster().takeovers.values()) == DEFAULT_PARTITIONS)
            figures = before.cluster()
            assert figures.takeovers == {"new": DEFAULT_PARTITIONS}
            await until_written(cluster)
            (row, *_) = [line for line in await show(cluster, json=False, full=False) if "unfinished" in line]
            assert "1 session is unfinished, oldest progress" in row
            async with (
                cluster.node(BareAgent("clerk", llm=second), node="second", telemetry=telemetry) as runtime,
                runtime.events() as events,
                trio.open_nursery() as inner,
            ):
                metrics = Metrics(runtime, runtime.journal)
                with metrics.counting(inner):
                    scope.cancel()
                    await until(lambda: sum(runtime.cluster().takeovers.values()) == DEFAULT_PARTITIONS)
                    await session.wait_idle()
                    assert (await session.history())[-1].text == "at last"
                    figures, text = runtime.cluster(), metrics.text(gauges_of(runtime, {}))
                    taken = []
                    while sum(each.partitions for each in taken) < DEFAULT_PARTITIONS:
                        event = await events.receive()
                        taken += [event] if isinstance(event, PartitionsTaken) else []
                inner.cancel_scope.cancel()
    died = figures.takeovers["died"]
    assert sum(figures.takeovers.values()) == DEFAULT_PARTITIONS
    assert died >= 1
    assert figures.resumed == 1
    assert figures.takeover_seconds > 0
    assert {each.reason for each in taken} <= {"died", "given_back"}
    assert sum(each.partitions for each in taken if each.reason == "died") == died
    assert f'actgent_cluster_takeovers_total{{reason="died"}} {died}' in text
    assert f'actgent_cluster_takeover_seconds_count{{reason="died"}} {died}' in text
    assert "actgent_cluster_sessions_resumed_total 1" in text
    assert f"actgent_cluster_partitions {DEFAULT_PARTITIONS}" in text
    lines = [each.getMessage() for each in caplog.records if "which has died" in each.getMessage()]
    assert sum(int(line.split()[2]) for line in lines) == died
    assert takeovers_in(read)["died"] == died


async def test_status_shows_owner_and_acquisition_time_of_partitions(open_cluster):
    """The status shows the owner of each partition, its acquisition time, and the age of the last step of unfinished work."""
    llm = Held()
    with trio.fail_after(PATIENCE):
        async with open_cluster() as cluster, cluster.node(BareAgent("clerk", llm=llm)) as runtime:
            async with cluster.connect() as client:
                await client.agent("clerk").create_session("ada", "well?")
                await llm.asked.wait()
                await until(lambda: sum(runtime.cluster().takeovers.values()) == DEFAULT_PARTITIONS)
                await until_written(cluster)
                found = json.loads("".join(await show(cluster, json=True, full=False)))
                lines = await show(cluster, json=False, full=True)
                llm.let.set()
            node = runtime.cluster().node
    (busy,) = [each for each in found["partitions"] if each["unfinished"]]
    assert 0 < busy["lag"] < PATIENCE
    assert {each["lag"] for each in found["partitions"] if each is not busy} == {0}
    assert datetime.fromisoformat(busy["since"]) <= datetime.now(UTC)
    (line,) = [each for each in lines if "1 unfinished" in each]
    assert line.startswith(f"  {busy['partition']}: {node} since {busy['since'][:10]}")
    assert ", lag " in line


async def test_single_process_reports_no_cluster_figures():
    """A single process is no node."""
    async with open_runtime() as runtime:
        assert runtime.cluster() is None
