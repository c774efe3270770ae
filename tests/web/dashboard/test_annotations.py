"""Tags and metadata of sessions on the dashboard."""

from .test_dashboard import link_of

ADD = """(() => {
  const box = document.querySelector("input[name=annotation]");
  box.value = %r;
  box.form.requestSubmit();
})()"""
TAGS = "[...document.querySelectorAll('section[aria-label=Tags] .tag')].map(each => each.textContent).join()"
LISTED = "[...document.querySelectorAll('tbody tr a.cut')].map(each => each.textContent).join()"


async def test_tags_are_shown_and_changed(serving, screen):
    """A tag and a value are added, and removed by their buttons. A rejected text is reported."""
    async with serving() as served:
        async with served.client() as ada:
            await ada.put("/v1/sessions/s1", json={"agent": "clerk", "tags": ["parcel"]})
        await screen.open(link_of(served))
        await screen.go("#/sessions/s1")
        await screen.until(f"{TAGS} === 'parcel'")
        await screen.run(ADD % "<b>very urgent")
        await screen.until(f"{TAGS} === '<b>very urgent,parcel'")
        await screen.run(ADD % "ticket=4711")
        await screen.until(
            "document.querySelector('section[aria-label=Tags] dd').textContent.includes('4711')"
        )
        await screen.run("document.querySelector('button[aria-label=\"Remove the tag parcel\"]').click()")
        await screen.until(f"{TAGS} === '<b>very urgent'")
        await screen.run("document.querySelector('button[aria-label=\"Remove ticket\"]').click()")
        await screen.until("!document.querySelector('section[aria-label=Tags] dd')")
        await screen.run(ADD % "a,b")
        await screen.until(
            "document.querySelector('section[aria-label=Tags] .err').textContent.includes('comma')"
        )
        async with served.client() as ada:
            one = (await ada.get("/v1/sessions/s1")).json()
        assert (one["tags"], one["metadata"]) == (["<b>very urgent"], {})
    screen.tab.complaints.clear()  # the browser logs the 422


async def test_the_list_is_filtered_by_tags(serving, screen):
    """A click on a tag, the filter field and the address of the page select the sessions with a tag."""
    async with serving() as served:
        async with served.client() as ada:
            for name, body in (
                ("s1", {"tags": ["a", "b c"], "metadata": {"ticket": "1"}}),
                ("s2", {"tags": ["a"], "metadata": {"ticket": "2"}}),
                ("s3", {}),
            ):
                await ada.put(f"/v1/sessions/{name}", json={"agent": "clerk", **body})
        await screen.open(link_of(served))
        await screen.go("#/sessions")
        await screen.until(f"{LISTED} === 's3,s2,s1'")
        await screen.run(
            "[...document.querySelectorAll('tbody .tag')].find(each => each.textContent === 'b c').click()"
        )
        await screen.until(f"{LISTED} === 's1'")
        assert await screen.run("location.hash") == "#/sessions?tags=b%20c"
        await screen.go("#/sessions?q=tag:a+ticket%3D2")
        await screen.until(f"{LISTED} === 's2'")
        await screen.go("#/sessions?tags=a")
        await screen.until(f"{LISTED} === 's2,s1'")
        await screen.reload()
        await screen.until(f"{LISTED} === 's2,s1'")


async def test_a_changed_tag_reaches_the_open_list(serving, screen):
    """The program and a client change tags of two sessions, one of them closed. The rows show the tags without a reload of the page."""
    rows = "[...document.querySelectorAll('tbody tr')].map(each => [...each.querySelectorAll('.tag.flat')].map(tag => tag.textContent).join('+')).join()"
    async with serving() as served, served.client() as ada:
        for name in ("s1", "s2"):
            await ada.put(f"/v1/sessions/{name}", json={"agent": "clerk", "tags": ["old"]})
        await ada.post("/v1/sessions/s1/close", json={})
        await screen.open(link_of(served))
        await screen.go("#/sessions")
        await screen.until("document.querySelector('header .live').innerText === 'live'")
        await screen.until(f"{rows} === 'old,old'")
        await screen.run("window.isSame = true")
        await served.runtime.annotate("s2", add_tags=["<b>new"], remove_tags=["old"])
        await screen.until(f"{rows}.split(',').includes('<b>new')")
        await ada.patch("/v1/sessions/s1", json={"add_tags": ["late"]})
        await screen.until(f"{rows}.split(',').sort().join() === '<b>new,late+old'")
        assert await screen.run("window.isSame")


async def test_a_new_session_gets_tags_and_metadata(serving, screen):
    """The form sends tags and metadata. A line without `=` is reported, and the form keeps its input."""
    async with serving() as served:
        await screen.open(link_of(served))
        await screen.go("#/new?agent=clerk")
        await screen.until("document.querySelector('form.new textarea[name=metadata]')")
        await screen.run("document.querySelector('form.new details').open = true")
        await screen.fill("input[name=tags]", "parcel, <b>very urgent,")
        await screen.fill("textarea[name=metadata]", "ticket")
        await screen.fill("input[name=id]", "s1")
        await screen.run("document.querySelector('form.new').requestSubmit()")
        await screen.until("document.querySelector('form.new .err').innerText.includes('key=value')")
        assert served.runtime.agents.opener("clerk").find_loaded("s1") is None
        await screen.fill("textarea[name=metadata]", "=4711=b\nregion = eu")
        await screen.run("document.querySelector('form.new').requestSubmit()")
        await screen.until(f"{TAGS} === '<b>very urgent,parcel'")
        async with served.client("root") as root:
            one = (await root.get("/v1/sessions/s1")).json()
        assert (one["tags"], one["metadata"]) == (
            ["<b>very urgent", "parcel"],
            {"ticket": "4711=b", "region": "eu"},
        )
