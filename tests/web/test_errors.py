"""What failed, over HTTP."""

from actgent import BareAgent, ProviderUnavailable, ScriptedLLM
from actgent.actors import DeadLetter


async def fail(client, session_id):
    made = await client.put(f"/v1/sessions/{session_id}", json={"agent": "scout"})
    assert made.status_code == 201
    body, headers = {"content": "What is there?"}, {"prefer": "wait=20"}
    said = await client.post(f"/v1/sessions/{session_id}/messages", json=body, headers=headers)
    assert said.json()["status"] == "failed"


async def test_errors_are_those_of_the_owner(serving):
    """They are grouped by kind and class, the newest session first; another owner's are not counted, an admin's are all."""
    errors = [ProviderUnavailable("503"), ProviderUnavailable("down"), ProviderUnavailable("of bob")]
    agent = BareAgent(name="scout", llm=ScriptedLLM(errors))
    async with serving(agents=[agent]) as served, served.client() as ada, served.client("bob") as bob:
        assert (await ada.get("/v1/errors")).json() == {"items": [], "next": None}
        for client, session_id in ((ada, "s1"), (ada, "s2"), (bob, "b1")):
            await fail(client, session_id)
        (group,) = (await ada.get("/v1/errors")).json()["items"]
        assert (group["kind"], group["error"], group["count"]) == ("model", "ProviderUnavailable", 2)
        assert group["words"] == "down"
        assert group["agents"] == ["scout"]
        assert [each["id"] for each in group["sessions"]] == ["s2", "s1"]
        assert group["first_at"] <= group["last_at"]
        async with served.client("root") as root:
            (whole,) = (await root.get("/v1/errors")).json()["items"]
            assert (whole["count"], whole["words"]) == (3, "of bob")
            await root.delete("/v1/sessions/b1")
        assert (await bob.get("/v1/errors")).json()["items"] == []


async def test_dead_letters_are_for_admins(served):
    """A message that nobody took is an error of its own kind, which has no session and so no owner."""
    async with served.client() as ada, served.client("root") as root:
        served.runtime.bury(DeadLetter("helper", "hello", "it was stopped"))
        letters = [
            each for each in (await root.get("/v1/errors")).json()["items"] if each["kind"] == "dead letter"
        ]
        assert [(each["words"], each["agents"], each["sessions"]) for each in letters] == [
            ("it was stopped", ["helper"], [])
        ]
        assert (await ada.get("/v1/errors")).json()["items"] == []
