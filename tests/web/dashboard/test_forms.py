"""The form of a pending call on the approvals page."""

import base64
import json

from actgent import ApprovalRequest, BareAgent, ScriptedLLM, ToolCall, ToolContext, tool
from actgent.forms import Field

from .test_dashboard import link_of

FORM = [
    Field("nights", "number", minimum=1, label="How many nights?", help="<b>At least</b> one."),
    Field("room", "select", options=["single", "double"]),
    Field("extras", "multiselect", options=["tea", "view", "sun"], required=False),
    Field("breakfast", "boolean"),
    Field("note", required=False),
    Field("from", "date"),
    Field("at", "datetime", required=False),
    Field("passport", "file", required=False),
    Field("agreed", "confirm", label="I agree"),
    Field("more", "custom", schema={"type": "object"}, required=False),
]
FILL = """(async () => {
  const form = document.querySelector('.ask form');
  const set = (name, value) => { form.elements.namedItem(name).value = value; };
  set('nights', '2'); set('room', 'double'); set('from', '2027-01-31'); set('more', '{"a": 1}');
  form.elements.namedItem('breakfast').checked = true;
  form.elements.namedItem('agreed').checked = true;
  for (const option of form.elements.namedItem('extras').options) option.selected = option.value !== 'view';
  const files = new DataTransfer();
  files.items.add(new File(['hello'], 'p.txt', { type: 'text/plain' }));
  form.elements.namedItem('passport').files = files.files;
  form.requestSubmit();
})()"""


def asking_agent(got):
    @tool(approval=ApprovalRequest("Which nights?", form=FORM, risk="high"))
    async def book(hotel: str, context: ToolContext) -> str:
        """Book a hotel."""
        got.append(json.loads(json.dumps(dict(context.approval.content))))
        return "booked"

    answers = [ToolCall("book", {"hotel": "Ritz"}), "It is booked."]
    return BareAgent("desk", llm=ScriptedLLM(answers), tools=[book])


async def test_form_is_filled_in(serving, screen):
    """Each type of value has a field, the risk is shown, and HTML is shown as text. Invalid values are not sent."""
    got = []
    async with serving(agents=[asking_agent(got)]) as served:
        async with served.client() as client:
            await client.put("/v1/sessions/s1", json={"agent": "desk"})
            body = {"input": "book"}
            await client.post("/v1/sessions/s1/messages", json=body, headers={"prefer": "wait=20"})
            (waiting,) = (await client.get("/v1/approvals")).json()["items"]
            assert (waiting["risk"], len(waiting["form"]["properties"])) == ("high", 10)
            place = f"/v1/approvals/{waiting['id']}/decision"
            wrong = await client.post(place, json={"approve": {"nights": 0}})
            assert (wrong.status_code, wrong.json()["type"]) == (422, "/errors/invalid-arguments")
        await screen.open(link_of(served))
        await screen.until("document.querySelector('.n.hot').textContent === '1'")
        await screen.run("location.hash = '#/approvals'")
        await screen.until("document.querySelectorAll('.ask .field').length === 10")
        text = await screen.run("document.querySelector('.ask').innerText")
        assert "Risk: high" in text
        assert "<b>At least</b> one." in text
        types = await screen.run(
            "[...document.querySelector('.ask form').elements].map(each => each.type).join()"
        )
        assert types == (
            "number,select-one,select-multiple,checkbox,text,date,datetime-local,file,checkbox,textarea,submit"
        )
        await screen.run(
            "document.querySelector('.ask form').requestSubmit()"
        )  # the browser rejects the form
        assert await screen.run("document.querySelector('.ask form').checkValidity()") is False
        await screen.run(FILL)
        await screen.until("document.body.innerText.includes('No pending approvals')")
        data = base64.b64encode(b"hello").decode()
    assert got == [
        {
            "nights": 2,
            "room": "double",
            "extras": ["tea", "sun"],
            "breakfast": True,
            "from": "2027-01-31",
            "passport": {"name": "p.txt", "media_type": "text/plain", "data": data},
            "agreed": True,
            "more": {"a": 1},
        }
    ]
