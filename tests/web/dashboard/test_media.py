"""Pictures, sound and files on the page of a session, and ratings of answers."""

import base64
import io
import math
import struct
import wave
import zlib

import pytest

from actgent import BareAgent, File, Image, ScriptedLLM, ToolCall, tool

PICTURES = "document.querySelectorAll('main .medium img')"
DRAWN = f"[...{PICTURES}].every(each => each.complete && each.naturalWidth) && {PICTURES}.length"


def picture(width=30, height=20, padding=0):
    """Return a PNG of one colour, with `padding` bytes in a chunk that decoders ignore."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + b"\x20\x60\xc0" * width for _ in range(height))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    more = chunk(b"teXt", bytes(padding)) if padding else b""
    return b"\x89PNG\r\n\x1a\n" + head + more + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def sound():
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(n / 9))) for n in range(800)))
    return made.getvalue()


@tool
async def photo(what: str):
    """Take a photo, with what is heard."""
    return [
        f"A photo of {what}.",
        Image(media_type="image/png", data=picture()),
        File(media_type="audio/wav", data=sound(), name="noise.wav"),
    ]


def answer(chat):
    if any(type(part).__name__ == "ToolResult" for part in chat.messages[-1].parts):
        return "Here it is."
    return ToolCall("photo", {"what": "a door"})


@pytest.fixture
async def shown(serving, screen):
    """Return a function that sends a message to a session whose agent answers with a photo, and opens the session."""

    async def show(served, *parts):
        async with served.client() as client:
            await client.put("/v1/sessions/s1", json={"agent": "camera"})
            content = [{"type": "text", "text": "What is this?"}, *parts]
            said = {"input": content, "message_id": "m1"}
            answered = await client.post("/v1/sessions/s1/messages", json=said, headers={"prefer": "wait=20"})
            assert answered.json()["status"] == "answered", answered.text
        await screen.open(f"{served.gateway.url}/#key={served.tokens['ada']}")
        await screen.until("document.querySelector('tbody a')")
        await screen.go("#/sessions/s1?agent=camera")
        await screen.until("document.body.innerText.includes('Here it is.')")

    return show


@pytest.fixture
async def camera(serving):
    async with serving(agents=[BareAgent("camera", llm=ScriptedLLM(answer), tools=[photo])]) as served:
        yield served


def said(data, media_type="image/png", kind="image", **more):
    return {"type": kind, "media_type": media_type, "data": base64.b64encode(data).decode(), **more}


async def test_pictures_are_shown(camera, screen, shown):
    """Pictures of users and tools are drawn from memory, with a text alternative."""
    await shown(camera, said(picture(40, 30)))
    await screen.until(f"{DRAWN} === 2")
    found = await screen.run(
        f"[...{PICTURES}].map(each => [each.naturalWidth, each.src.slice(0, 5), each.alt])"
    )
    assert [each[:2] for each in found] == [[40, "blob:"], [30, "blob:"]]
    assert all("image/png" in alt and "from" in alt for *_, alt in found)
    await screen.run("location.hash = '#/sessions'")
    await screen.until("document.querySelector('tbody a')")
    again = "const each = new Image(); each.onload = () => done('there'); each.onerror = () => done('gone'); each.src"
    assert await screen.run(f"new Promise(done => {{ {again} = '{found[0][1]}' }})") == "gone"
    screen.tab.complaints.clear()  # of the picture that was removed from memory


async def test_sound_is_loaded_on_request(camera, screen, shown):
    """The browser downloads the sound only after the click on *Play*."""
    await shown(camera)
    await screen.until(DRAWN)
    before = screen.asked("/media/")
    await screen.run(
        "[...document.querySelectorAll('main .medium button')].find(each => each.textContent === 'Play').click()"
    )
    assert (
        await screen.until(
            "document.querySelector('audio').readyState >= 1 && document.querySelector('audio').duration"
        )
        == "0.1"
    )
    assert screen.asked("/media/") == before + 1


async def test_unsafe_media_is_not_shown(camera, screen, shown):
    """Files, SVG, and markup with the type of a picture are named and can be saved. The page never opens them."""
    page = b"<script>alert(1)</script>"
    drawing = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    await shown(
        camera,
        said(page),
        said(drawing, "image/svg+xml"),
        said(page, "text/html", "file", name="<img src=x onerror=alert(1)>.html"),
    )
    await screen.until("document.body.innerText.includes('This file cannot be shown.')")
    await screen.until(f"{PICTURES}.length === 1")  # the picture of the tool
    text = await screen.run(
        "[...document.querySelectorAll('main .medium figcaption .dim:first-child')].map(each => each.textContent)"
    )
    assert any(each.startswith("<img src=x onerror=alert(1)>.html") for each in text)
    assert len(text) == 5
    assert (
        await screen.run(
            "document.querySelectorAll('main script, main svg script, main iframe, main object').length"
        )
        == 0
    )


async def test_large_picture_is_loaded_on_request(camera, screen, shown):
    """The browser downloads a large picture after a click, and other pictures when they become visible."""
    large = said(picture(padding=4_200_000))
    await shown(camera, large, *[said(picture(600, 400)) for _ in range(30)])
    await screen.until(
        "[...document.querySelectorAll('main .medium button')].some(each => each.textContent === 'Show')"
    )
    await screen.until(DRAWN)
    assert screen.asked("/media/") < 20
    await screen.run("document.querySelector('main').scrollTop = 0")
    await screen.run(
        "[...document.querySelectorAll('main .medium button')].find(each => each.textContent === 'Show').click()"
    )
    await screen.until("document.querySelector('main .medium img')?.naturalWidth === 30")


async def test_external_pictures_are_not_loaded(camera, screen, shown):
    """External pictures are shown as links, because a download would reveal the reader to the other server."""
    address = "https://pictures.example/x.png"
    await shown(camera, {"type": "image", "media_type": "image/png", "url": address})
    await screen.until(f"document.querySelector('main a[href^=https]').href === '{address}'")
    assert screen.asked("pictures.example") == 0


async def test_answer_is_rated(camera, screen, shown):
    """A rating is stored at once, and a comment when it is sent. Both are on the page, also after a reload."""
    await shown(camera)
    button = "document.querySelector('[aria-label=\"Bad answer\"]')"
    await screen.until(button)
    await screen.run(f"{button}.click()")
    await screen.until("document.querySelector('.judged').textContent.includes('bad')")
    await screen.until("document.activeElement.name === 'comment'")
    await screen.press(*"It is a wall.")
    await screen.fill("input[name=expected]", "A wall <b>of stone</b>.")
    await screen.press("Enter")
    await screen.until("document.querySelector('.judged').textContent.includes('It is a wall.')")
    await screen.until("!document.querySelector('.feedback form')")
    async with camera.client() as client:
        (kept,) = (await client.get("/v1/sessions/s1/messages/m1/feedback")).json()["items"]
    assert (kept["score"], kept["comment"], kept["expected"]) == (
        0,
        "It is a wall.",
        "A wall <b>of stone</b>.",
    )
    await screen.run("document.querySelector('[aria-label=\"Good answer\"]').click()")
    await screen.until("document.querySelector('.judged').textContent.includes('good')")
    await screen.open("about:blank")
    await screen.open(f"{camera.gateway.url}/#/sessions/s1?agent=camera")
    await screen.until("document.querySelector('.judged').textContent.includes('good')")
    assert await screen.run("document.querySelectorAll('.judged').length") == 1


async def test_rating_without_the_scope_shows_the_error(camera, screen, shown):
    """With a token that only reads, the error is shown next to the rating buttons."""
    await shown(camera)
    await screen.run(f"sessionStorage.setItem('actgent.key', '{camera.tokens['reader']}')")
    await screen.until("document.querySelector('[aria-label=\"Good answer\"]')")
    await screen.run("document.querySelector('[aria-label=\"Good answer\"]').click()")
    assert "not saved" in await screen.until("document.querySelector('.feedback .err').textContent")
    screen.tab.complaints.clear()  # the browser logs each 403
