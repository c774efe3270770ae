"""Evaluation datasets over HTTP."""

import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    PermissionDenied,
    ScriptedLLM,
    SessionNotFound,
    UsageError,
    connect,
    open_gateway,
    open_runtime,
)
from actgent.evaluation import Case, DatasetFolder, contains, evaluate, store_report
from actgent.web.routes.datasets import ENDPOINTS

from .conftest import open_served

CASES = "/v1/datasets/support/cases"


@pytest.fixture
async def with_datasets(tmp_path):
    """Yield a gateway with a folder of datasets, and an answered session of ada."""
    async with open_served(datasets=DatasetFolder(tmp_path)) as served:
        async with served.client() as ada:
            await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
            path = "/v1/sessions/s1/messages"
            await ada.post(path, json={"input": "hello"}, headers={"prefer": "wait=30"})
        yield served, tmp_path


async def test_a_session_is_added_once(with_datasets):
    """201 for a new case, 200 for the same one, 409 for another case of this name, 404 for an unknown session."""
    served, folder = with_datasets
    async with served.client("root") as root:
        first = await root.post(CASES, json={"session_id": "s1"})
        assert (first.status_code, first.headers["location"]) == (201, CASES)
        again = await root.post(CASES, json={"session_id": "s1", "agent": "clerk"})
        assert (again.status_code, again.json()) == (200, first.json())
        assert (await root.get(CASES)).json()["items"] == [first.json()]
        path = folder / "support.jsonl"
        path.write_text(path.read_text().replace("you said", "You said"))
        assert (await root.post(CASES, json={"session_id": "s1"})).status_code == 409
        assert (await root.post(CASES, json={"session_id": "s2"})).status_code == 404
        assert (await root.post("/v1/datasets/.x/cases", json={"session_id": "s1"})).status_code == 422


async def test_the_expected_answer_and_the_last_message_can_be_chosen(with_datasets):
    """The case of a turn has the name of its session and message."""
    served, _ = with_datasets
    async with served.client("root") as root:
        runs = (await root.get("/v1/sessions/s1/runs")).json()["items"]
        body = {"session_id": "s1", "message_id": runs[0]["message_id"], "expected": "Good day"}
        answer = await root.post(CASES, json=body)
        case = answer.json()["case"]
        assert (answer.status_code, case["name"]) == (201, f"s1/{runs[0]['message_id']}")
        assert (case["input"], case["expected"]) == (["hello"], "Good day")
        assert case["session"] == {"agent": "clerk", "id": "s1"}
        for wrong in ({"message_id": "m-unknown"}, {"expected": ""}):
            assert (await root.post(CASES, json={"session_id": "s1", **wrong})).status_code == 422


async def test_a_case_is_replaced_and_removed(with_datasets):
    """The other lines of the file stay as they are. An edit of an old version is rejected, and a retry has no further effect."""
    served, folder = with_datasets
    path = folder / "support.jsonl"
    other = '{"name":  "other", "input": "Hi", "expected": "x"}\n'
    path.write_text(
        f'\n{other}{{"name": "a/b c", "input": "Hi", "expected": "x"}}\n{{"input": "Without a name", "expected": "x"}}'
    )
    target = f"{CASES}/a%2Fb%20c"
    async with served.client("root") as root:
        _, case, unnamed = (await root.get(CASES)).json()["items"]
        body = {"version": case["version"], "case": {"name": "a/b", "input": ["Hi"], "expected": "Hello"}}
        changed = await root.put(target, json=body)
        assert (changed.status_code, changed.json()["case"]) == (200, body["case"])
        assert (await root.put(target, json=body)).json() == changed.json()
        assert (
            await root.put(target, json={**body, "case": {"input": "x", "expected": "x"}})
        ).status_code == 404
        target = f"{CASES}/a%2Fb"
        assert (
            await root.put(target, json={**body, "case": {"input": "x", "expected": "x"}})
        ).status_code == 409
        body["version"] = changed.json()["version"]
        renamed = await root.put(
            target, json={**body, "case": {"name": "other", "input": "x", "expected": "x"}}
        )
        assert (renamed.status_code, "another case" in renamed.json()["detail"]) == (409, True)
        for wrong in (
            {"input": 5, "expected": "x"},
            {"inputs": "x"},
            {"input": "x", "matches": "("},
            {"input": "x"},
        ):
            assert (await root.put(target, json={**body, "case": wrong})).status_code == 422
        named = {"version": unnamed["version"], "case": {"name": "named", **unnamed["case"]}}
        assert (await root.put(f"{CASES}/Without%20a%20name", json=named)).status_code == 200
        assert (await root.delete(target)).status_code == 422
        assert (await root.delete(target, params={"version": case["version"]})).status_code == 409
        assert (await root.delete(target, params={"version": body["version"]})).status_code == 204
        assert (await root.delete(target, params={"version": body["version"]})).status_code == 404
        assert (await root.delete(f"/v1/datasets/none/cases/x?version={body['version']}")).status_code == 404
    assert path.read_text() == f'\n{other}{{"name": "named", "input": "Without a name", "expected": "x"}}\n'


async def test_two_edits_of_a_case_at_once(with_datasets):
    """One edit is stored, and the other is rejected."""
    served, folder = with_datasets
    (folder / "support.jsonl").write_text('{"name": "a", "input": "Hi", "expected": "x"}\n')
    async with connect(served.gateway.url, token=served.tokens["root"]) as client:
        (case,) = await client.dataset_cases("support")
        stored, rejected = [], []

        async def edit(expected):
            content = {**case["case"], "expected": expected}
            try:
                stored.append(await client.replace_dataset_case("support", case, content))
            except UsageError as error:
                rejected.append(str(error))

        async with trio.open_nursery() as nursery:
            for expected in ("Hello", "Good day"):
                nursery.start_soon(edit, expected)
        assert list(await client.dataset_cases("support")) == stored
    (text,) = rejected
    assert "case 'a' was changed since it was read: read it again" in text


async def test_evaluations_are_listed_and_compared(with_datasets):
    served, folder = with_datasets
    async with served.client("root") as root:
        await root.post(CASES, json={"session_id": "s1"})
        for answer in ("Hi Ada", "Hi"):
            case = Case(input="Hi", checks=[contains("Ada")])
            report = await evaluate([case], {"clerk": BareAgent("clerk", llm=ScriptedLLM([answer]))})
            store_report(folder / "support.jsonl", report.to_json())
        (listed,) = (await root.get("/v1/datasets")).json()["items"]
        found = (await root.get("/v1/datasets/support/evaluations")).json()["items"]
        assert (listed["last"], len(found)) == (found[0], 2)
        last = (await root.get(f"/v1/datasets/support/evaluations/{found[0]['id']}")).json()
        assert last["before"] == found[1]
        (item,) = last["items"]
        assert (item["figures"]["passed"], item["before"]["passed"]) == (0, 1)
        for path in ("support/evaluations/x", "other/evaluations", "other/cases"):
            assert (await root.get(f"/v1/datasets/{path}")).status_code == 404


async def test_the_client_reads_and_extends_datasets(with_datasets):
    """The methods return the objects of the HTTP API. None stands for a missing dataset or evaluation."""
    served, folder = with_datasets
    async with connect(served.gateway.url, token=served.tokens["root"]) as client:
        assert await client.datasets() == ()
        assert (await client.dataset_cases("support"), await client.evaluations("support")) == (None, None)
        made = await client.add_dataset_case("support", "s1", agent="clerk", expected="Good day")
        assert (made["name"], made["case"]["expected"]) == ("s1", "Good day")
        assert await client.add_dataset_case("support", "s1", expected="Good day") == made
        with pytest.raises(UsageError, match="a different case with this name"):
            await client.add_dataset_case("support", "s1")
        with pytest.raises(ConfigurationError, match="whose turn ends with an answer"):
            await client.add_dataset_case("support", "s1", message_id="m9")
        with pytest.raises(SessionNotFound):
            await client.add_dataset_case("support", "s2")
        report = await evaluate(
            [Case(input="Hi", expected="Hi")], BareAgent("clerk", llm=ScriptedLLM(["Hi"]))
        )
        stored = store_report(folder / "support.jsonl", report.to_json())
        assert await client.dataset_cases("support") == (made,)
        changed = await client.replace_dataset_case("support", made, {**made["case"], "expected": "Hello"})
        with pytest.raises(UsageError, match="was changed since it was read"):
            await client.remove_dataset_case("support", made)
        await client.remove_dataset_case("support", changed)
        await client.remove_dataset_case("support", changed)
        assert await client.dataset_cases("support") == ()
        with pytest.raises(UsageError, match="dataset 'support' has no case 's1'"):
            await client.replace_dataset_case("support", changed, {"input": "x", "expected": "x"})
        (listed,) = await client.datasets()
        (summary,) = await client.evaluations("support")
        assert (listed["name"], listed["last"], summary["id"]) == ("support", summary, stored.stem)
        found = await client.evaluation("support", stored.stem)
        assert (found["summary"], found["items"][0]["figures"]["passed"]) == (summary, 1)
        assert await client.evaluation("support", "x") is None
    async with connect(served.gateway.url, token=served.tokens["ada"]) as client:
        with pytest.raises(PermissionDenied):
            await client.datasets()


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: f"{each.verb} {each.path}")
async def test_datasets_need_the_scope_admin(with_datasets, endpoint):
    """The cases have the text of sessions of all owners."""
    served, folder = with_datasets
    path = endpoint.path.format(d="support", evaluation="x", case="s1")
    body = {"POST": {"session_id": "s1"}, "PUT": {"version": "x", "case": {"input": "x"}}}.get(endpoint.verb)
    more = {} if body is None else {"json": body}
    for name in ("ada", "auditor", "service"):
        async with served.client(name) as client:
            assert (await client.request(endpoint.verb, f"/v1{path}", **more)).status_code == 403
    assert list(folder.iterdir()) == []


async def test_a_server_without_datasets_names_the_remedy(served):
    async with served.client("root") as root:
        assert (await root.get("/v1/datasets")).json() == {"items": [], "next": None, "is_enabled": False}
        answer = await root.post(CASES, json={"session_id": "s1"})
        assert (answer.status_code, "--datasets" in answer.json()["detail"]) == (422, True)


async def test_a_path_in_place_of_datasets_is_rejected(tmp_path):
    async with open_runtime(journal="memory:") as runtime:
        with pytest.raises(ConfigurationError, match="DatasetFolder"):
            async with open_gateway(runtime, bind=None, datasets=tmp_path):
                pass
