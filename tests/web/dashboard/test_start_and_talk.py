"""Starting sessions, sending messages with files, and editing earlier messages on the dashboard."""

import base64

import pytest
import trio

from actgent import BareAgent, ScriptedLLM
from actgent.journal.record_types import MessageAcceptedRecord
from actgent.messages import File, Image, Text
from actgent.modes.tool_permissions_by_mode import Modes

from .test_dashboard import SAY, link_of
from .test_media import picture

GIVE = """(async () => {
  const bytes = Uint8Array.from(atob(%r), each => each.charCodeAt(0));
  const files = new DataTransfer();
  files.items.add(new File([bytes], 'shop.png', { type: 'image/png' }));
  files.items.add(new File(['a,b'], 'table.csv', { type: 'text/csv' }));
  const box = document.querySelector('textarea[name=text]');
  box.dispatchEvent(new %s, { bubbles: true, cancelable: true, %s: files }));
})()"""
CHOOSE = """((name, value) => {
  const box = document.querySelector(`form.new [name=${name}]`);
  box.value = value;
  box.dispatchEvent(new Event("change", { bubbles: true }));
})(%r, %r)"""
TEXT = "document.querySelector('main').innerText"


def echo(chat):
    """Answer with the parts of the last message, and the number of messages before it."""
    texts = [
        part.text if isinstance(part, Text) else f"{type(part).__name__} {part.media_type} {len(part.data)}"
        for part in chat.messages[-1].parts
        if isinstance(part, Text | Image | File)
    ]
    return f"got {' + '.join(texts)} after {len(chat.messages) - 1} messages"


def agents():
    return [
        BareAgent("clerk", llm=ScriptedLLM(echo), modes=Modes(commands=False), goal="keep the books"),
        BareAgent("scout", llm=ScriptedLLM(echo)),
    ]


@pytest.fixture
async def desk(serving, screen):
    """Open the list of sessions of a gateway with two agents."""
    async with serving(agents=agents()) as served:
        await screen.open(link_of(served))
        await screen.until("document.querySelector('main a.btn.main')")
        yield served


async def test_new_session_starts_with_its_options(desk, screen):
    """`n` opens the form. The session has the chosen agent, mode, id, owner and limits, and answers the first message."""
    await screen.press("n")
    await screen.until("document.activeElement.name === 'text'")
    assert await screen.run("document.querySelector('form.new [name=mode]') !== null")
    await screen.run(CHOOSE % ("agent", "scout"))
    await screen.until("document.querySelector('form.new [name=mode]') === null")
    await screen.run(CHOOSE % ("agent", "clerk"))
    await screen.until("document.querySelector('form.new [name=mode]')")
    await screen.run("document.querySelector('form.new summary').click()")
    for name, value in {
        "mode": "act",
        "id": "s1",
        "owner": "ada",
        "tokens": "5000",
        "seconds": "90.5",
    }.items():
        await screen.run(CHOOSE % (name, value))
    await screen.fill("form.new textarea", "hello")
    await screen.run("document.querySelector('form.new').requestSubmit()")
    await screen.until(f"{TEXT}.includes('got hello after')")
    async with desk.client("root") as client:
        made = (await client.get("/v1/sessions/s1")).json()
    assert (made["agent"], made["owner"], made["mode"]) == ("clerk", "ada", "act")
    assert set(made["budget"]) == {"tokens", "seconds"}


async def test_rejected_first_message_is_sent_again(desk, screen):
    """If only the message fails, the form keeps the created session and sends the message to it."""
    await screen.press("n")
    await screen.until("document.querySelector('form.new textarea')")
    await screen.run(
        "window.before = fetch; window.fetch = (url, ...more) => String(url).includes('/messages') ? "
        "Promise.reject(new Error('cut off')) : before(url, ...more); 0"
    )
    await screen.fill("form.new textarea", "hello")
    await screen.run("document.querySelector('form.new').requestSubmit()")
    await screen.until("document.querySelector('form.new .err')?.innerText.includes('was created')")
    assert "does not answer" in await screen.run("document.querySelector('form.new .err').innerText")
    await screen.run("window.fetch = before; document.querySelector('form.new').requestSubmit()")
    await screen.until(f"{TEXT}.includes('got hello after 0 messages')")
    async with desk.client("root") as client:
        assert len((await client.get("/v1/sessions")).json()["items"]) == 1


@pytest.mark.parametrize(
    ("event", "field"), [("DragEvent('drop'", "dataTransfer"), ("ClipboardEvent('paste'", "clipboardData")]
)
async def test_dropped_and_pasted_files_are_sent(desk, screen, event, field):
    """A message contains its text, a picture and a file. A file can be removed before, and the list is empty afterwards."""
    data = picture()
    async with desk.client("root") as client:
        await client.put("/v1/sessions/s1", json={"agent": "scout"})
    await screen.go("#/sessions/s1?agent=scout")
    await screen.until("document.querySelector('textarea[name=text]')")
    await screen.run(GIVE % (base64.b64encode(data).decode(), event, field))
    await screen.until("document.querySelectorAll('.files li').length === 2")
    await screen.run(SAY % "'look'")
    await screen.until(f"{TEXT}.includes('got look + Image image/png {len(data)} + File text/csv 3 after')")
    await screen.until("document.querySelectorAll('.files li').length === 0")
    await screen.run(GIVE % (base64.b64encode(data).decode(), event, field))
    await screen.run("document.querySelector('[aria-label=\"Remove shop.png\"]').click()")
    await screen.until("document.querySelectorAll('.files li').length === 1")
    await screen.run("document.querySelector('form.say').requestSubmit()")  # without text
    await screen.until(f"{TEXT}.includes('got File text/csv 3 after')")


async def test_files_beyond_the_limit_are_named(desk, screen):
    """A file that is too large is not attached, and the page reports the file."""
    async with desk.client("root") as client:
        await client.put("/v1/sessions/s1", json={"agent": "scout"})
    await screen.go("#/sessions/s1?agent=scout")
    await screen.run(
        "(() => { const files = new DataTransfer(); files.items.add(new File([new Uint8Array(8e6)], 'film.bin'));"
        " document.querySelector('.box').dispatchEvent(new DragEvent('drop', { bubbles: true, dataTransfer: files })); })()"
    )
    await screen.until("document.querySelector('.say .err')?.innerText.includes('film.bin')")
    assert await screen.run("document.querySelectorAll('.files li').length") == 0


async def test_edited_message_goes_to_a_copy(desk, screen):
    """The copy ends before the edited message, and has its files. The original does not change."""
    data = picture()
    async with desk.client("root") as client:
        await client.put("/v1/sessions/s1", json={"agent": "scout"})
        for content in (
            "one",
            [
                {"type": "text", "text": "two"},
                {"type": "image", "media_type": "image/png", "data": base64.b64encode(data).decode()},
            ],
            "three",
        ):
            await client.post("/v1/sessions/s1/messages", json={"input": content}, headers={"prefer": "wait=20"})  # fmt: skip
    await screen.go("#/sessions/s1?agent=scout")
    await screen.until("document.querySelectorAll('.turn').length === 3")
    await screen.run("document.querySelectorAll('.turn')[1].querySelector('.edit').focus()")
    await screen.press("Enter")
    await screen.until("document.activeElement.value === 'two'")
    await screen.until("document.querySelectorAll('.turn .files li').length === 1")
    await screen.until("!document.querySelector('.turn form .btn.main').disabled")
    await screen.run("document.activeElement.value = 'second'")
    await screen.run("document.querySelector('.turn form').requestSubmit()")
    await screen.until(f"{TEXT}.includes('got second + Image image/png {len(data)} after 2 messages')")
    assert await screen.run("document.querySelectorAll('.turn').length") == 2
    assert await screen.run("document.querySelector('main h1').textContent") != "s1"
    await screen.go("#/sessions/s1?agent=scout")
    await screen.until("document.querySelectorAll('.turn').length === 3")
    await screen.run("document.querySelector('.edit').click()")
    await screen.until("document.activeElement.value === 'one'")
    await screen.press("Escape")
    await screen.until("document.querySelectorAll('.edit').length === 3")


async def test_stop_ends_the_running_turn(serving, screen):
    """The stop button is shown during a turn. After the click the turn ends as cancelled."""

    async def wait(_):
        await trio.sleep_forever()

    async with serving(agents=[BareAgent("clerk", llm=ScriptedLLM(wait))]) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        await screen.open(link_of(served))
        await screen.until("document.querySelector('tbody a')")
        await screen.go("#/sessions/s1?agent=clerk")
        stop = "[...document.querySelectorAll('.head button')].find(each => each.textContent === 'Stop')"
        assert await screen.run(f"{stop} === undefined")
        await screen.run(SAY % "'hello'")
        await screen.until(stop)
        await screen.run(f"{stop}.click()")
        await screen.until("document.querySelector('.turn .tag').innerText === 'failed'")
        await screen.until(f"{stop} === undefined")


async def test_earlier_turns_load_while_scrolling(serving, screen):
    """A long session opens with its newest turns. Scrolling up loads earlier turns and keeps the scroll position."""
    async with serving(agents=[BareAgent("clerk", llm=ScriptedLLM(["yes"], repeat=True))]) as served:
        session = await served.runtime.agents.agent("clerk").create_session("ada", session_id="s1")
        for number in range(400):
            await session.chat(f"question {number}")
            await session.wait_idle()
        await screen.open(link_of(served))
        await screen.until("document.querySelector('tbody a')")
        await screen.go("#/sessions/s1?agent=clerk")
        await screen.until(f"{TEXT}.includes('question 399')")
        started = await screen.run("document.querySelectorAll('.turn').length")
        assert 20 < started < 200
        at_end = "(main => main.scrollTop + main.clientHeight > main.scrollHeight - 40)(document.querySelector('main'))"
        await screen.until(at_end)
        assert await screen.run("document.querySelector('.head h1').getBoundingClientRect().top > 0")
        first = "document.querySelector('.turn p').textContent"
        before = await screen.run(first)
        await screen.run("document.querySelector('main').scrollTop = 300")
        await screen.until(f"document.querySelectorAll('.turn').length > {started}")
        assert await screen.run(first) != before
        for _ in range(10):
            if await screen.run("document.querySelector('button.wide') === null"):
                break
            await screen.run("document.querySelector('main').scrollTop = 0")
            count = await screen.run("document.querySelectorAll('.turn').length")
            await screen.until(
                f"document.querySelectorAll('.turn').length > {count} || !document.querySelector('button.wide')"
            )
        await screen.until("document.querySelectorAll('.turn').length === 400")
        numbers = await screen.run(
            "[...document.querySelectorAll('.turn')].map(each => each.getAttribute('aria-label'))"
        )
        assert numbers == [f"Turn {number}" for number in range(1, 401)]


async def test_a_link_opens_the_session_at_a_turn(serving, screen):
    """The link of a turn loads the records from there to the end, marks the turn, and scrolls to it. New turns do not scroll."""
    async with serving(agents=[BareAgent("clerk", llm=ScriptedLLM(["yes"], repeat=True))]) as served:
        session = await served.runtime.agents.agent("clerk").create_session("ada", session_id="s1")
        for number in range(200):
            await session.chat(f"question {number}")
            await session.wait_idle()
        page = await served.runtime.journal.read("s1", limit=1000)
        (at,) = (
            number
            for number, record in enumerate(page, 1)
            if isinstance(record, MessageAcceptedRecord) and record.message.text == "question 70"
        )
        await screen.open(link_of(served))
        await screen.tab.call("Network.enable")
        # the turns after the linked one arrive later than the first scroll
        slow = {"latency": 200, "downloadThroughput": 200_000, "uploadThroughput": 200_000}
        await screen.tab.call("Network.emulateNetworkConditions", offline=False, **slow)
        await screen.until("document.querySelector('tbody a')")
        await screen.go("#/sessions/s1?agent=clerk")
        await screen.until(f"{TEXT}.includes('question 199')")
        assert not await screen.run(f"{TEXT}.includes('question 70')")
        shown = """(turn => turn && turn.innerText.includes(%r)
            && Math.abs(turn.getBoundingClientRect().top - document.querySelector('main').getBoundingClientRect().top) < 150
            )(document.querySelector('.turn.target'))"""
        await screen.go(f"#/sessions/s1?agent=clerk&at={at}")
        await screen.until(shown % "question 70")
        assert await screen.run("document.querySelectorAll('.turn').length") <= 200
        await session.chat("question 200")
        await screen.until(f"{TEXT}.includes('question 200')")
        await screen.until(shown % "question 70")
        link = "[...document.querySelectorAll('.turn')].at(-9).querySelector('.about a')"
        await screen.run(f"{link}.click()")
        await screen.until(shown % "question 192")
        await screen.reload()
        await screen.until(shown % "question 192")
