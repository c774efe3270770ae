"""Pipeline runs over HTTP: sessions with children, on the paths of all sessions."""

import trio

from actgent import BareAgent, Pipeline, PipelineStep, ScriptedLLM


async def test_pipeline_run_is_a_session_with_children(serving):
    """A run is started, followed, read and resumed like any other session."""
    clerk = BareAgent("clerk", llm=ScriptedLLM(lambda chat: f"<{chat.messages[0].parts[0].text}>"))
    steps = [
        PipelineStep("find", agent=clerk, message="find {topic}"),
        PipelineStep("write", agent=clerk, message="write {find}"),
    ]
    async with serving(agents=[Pipeline("report", steps=steps)]) as served, served.client() as ada:
        await ada.put("/v1/sessions/r1", json={"agent": "report"})
        response = await ada.post("/v1/sessions/r1/messages", json={"input": '{"topic": "tea"}'})
        assert response.status_code == 202
        about = await _idle(ada)
        assert {each["id"] for each in about["children"]} == {"r1/task/find", "r1/task/write"}
        assert {each["agent"] for each in about["children"]} == {"clerk"}
        await ada.post("/v1/sessions/r1/messages", json={"input": '{"from": ["write"]}'})
        about = await _idle(ada)
        assert {each["id"] for each in about["children"]} == {
            "r1/task/find",
            "r1/task/write",
            "r1/task/write@2",
        }
        messages = (await ada.get("/v1/sessions/r1/messages")).json()
        assert "<write <find tea>>" in str(messages)


async def _idle(client):
    """Return the session after all of its turns ended."""
    while (about := (await client.get("/v1/sessions/r1")).json())["status"] != "idle":  # noqa: ASYNC110 - in another process
        await trio.sleep(0.01)
    return about
