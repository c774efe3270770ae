"""The Grafana dashboard of the examples uses only metrics and labels of the gateway."""

import json
import re
from pathlib import Path

import pytest

from actgent.web.prometheus_metrics import HELP

from .test_metrics import parsed, scrape

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana" / "actgent.json"
METRIC = re.compile(r"(?<!by )\(((?:actgent|gen_ai)_\w+)")
GROUPING = re.compile(r"by \(([\w, ]+)\)")


@pytest.fixture(scope="module")
def dashboard():
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def queries(dashboard):
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def base_of(name):
    """Return the metric of a sample. Histogram samples have three suffixes."""
    base = re.sub("_(bucket|sum|count)$", "", name)
    return base if HELP.get(base, ("",))[0] == "histogram" else name


def test_each_query_names_metrics_of_the_gateway(dashboard):
    for query in queries(dashboard):
        names = METRIC.findall(query)
        assert names, query
        assert {base_of(name) for name in names} <= set(HELP), query


def test_panels_do_not_overlap(dashboard):
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


async def test_queries_group_by_labels_that_the_metrics_have(dashboard, served):
    async with served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        await ada.post("/v1/sessions/s1/messages", json={"input": "x"}, headers={"prefer": "wait=20"})
    await scrape(served)  # the second one counts the first
    samples = parsed(await scrape(served))
    labels = {}
    for name, pairs in samples:
        labels.setdefault(base_of(name), set()).update(label for label, _ in pairs)
    checked = 0
    for query in queries(dashboard):
        for name in {base_of(each) for each in METRIC.findall(query)} & labels.keys():
            used = {label.strip() for group in GROUPING.findall(query) for label in group.split(",")}
            used |= set(re.findall(r"(\w+)(?:=~|!=)", query))
            assert used <= labels[name] | {"le"}, query
            checked += 1
    assert checked > 8
