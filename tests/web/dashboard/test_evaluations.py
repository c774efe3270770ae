"""The pages of datasets and evaluations, and the dialog that adds a session to a dataset."""

import json

import pytest

from actgent import BareAgent, ScriptedLLM
from actgent.evaluation import Case, DatasetFolder, contains, evaluate, load_cases, store_report

IMAGE = "<img src=x onerror=document.title='pwned'>"
TEXT = "document.querySelector('main').innerText"
CUT = """[...document.querySelectorAll('main, main .scroll')].filter(each => each.scrollWidth > each.clientWidth + 1)
  .map(each => `${each.className} ${each.scrollWidth} > ${each.clientWidth}`).join()"""
CASES = (
    {"name": "greet", "input": "Hi, I am Ada.", "contains": ["Ada"], "tags": ["polite"]},
    {"name": "sum", "input": ["2 and 2?", "Thanks."], "expected": "four", "tags": ["maths", "polite"]},
    {
        "name": "long",
        "input": "word " * 200 + "end",
        "expected": "yes",
        "session": {"agent": "clerk", "id": "s1"},
    },
)


def write_cases(folder, cases=CASES, name="support"):
    path = folder / f"{name}.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in cases))
    return path


async def run(path, answers, *, cases=None, variants=("clerk",)):
    """Evaluate the cases of a file with scripted answers, store the report, and return its id."""
    agents = {name: BareAgent("clerk", llm=ScriptedLLM(answers, repeat=True)) for name in variants}
    report = await evaluate(cases or load_cases(path), agents, concurrency=1)
    return store_report(path, report.to_json()).stem


@pytest.fixture
async def evaluated(serving, tmp_path):
    """Yield a gateway with a folder of datasets, the folder, and a session s1 with two answered messages."""
    llm = ScriptedLLM(["Hello Ada", "It is four."], repeat=True)
    async with (
        serving(agents=[BareAgent("clerk", llm=llm)], datasets=DatasetFolder(tmp_path)) as served,
        served.client() as ada,
    ):
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        for number, expected in enumerate(("Hi, I am Ada.", "2 and 2?"), 1):
            body = {"input": expected, "message_id": f"m{number}"}
            await ada.post("/v1/sessions/s1/messages", json=body, headers={"prefer": "wait=30"})
        yield served, tmp_path


async def enter(served, screen, name="root", place="#/evaluations"):
    """Open a page of the dashboard with a token."""
    await screen.open(f"{served.gateway.url}/#key={served.tokens[name]}")
    await screen.until("document.querySelector('nav')")
    await screen.go(place)


async def follow(screen, selector):
    """Open the link of a selector with the Enter key."""
    await screen.run(f"document.querySelector('{selector}').focus()")
    await screen.press("Enter")


async def test_an_evaluation_is_compared_by_keys(evaluated, screen):
    """The list leads to the dataset, to the latest evaluation, and to each other evaluation. The address has all choices."""
    served, folder = evaluated
    path = write_cases(folder)
    first = await run(path, ["Hello", "four", "four", "yes"])
    second = await run(path, ["Hello Ada", "four", "four", "no"])
    third = await run(path, ["Hello Ada", "four", "five", "no"], cases=load_cases(path)[:2])
    await enter(served, screen, place="#/sessions")
    await screen.press("g", "v")
    await screen.until("document.querySelector('tbody td .tag')?.innerText === '1 of 2'")
    await follow(screen, "tbody a")
    await screen.until("document.querySelectorAll('.chart').length === 3")
    label = await screen.run("document.querySelector('.chart').getAttribute('aria-label')")
    assert label == "Passed: latest 50 %; 50 % to 67 % in 3 evaluations"
    assert await screen.run("document.querySelectorAll('.chart')[0].querySelectorAll('rect').length") == 3
    tags = "[...document.querySelectorAll('tbody .tag')].map(each => each.innerText).join()"
    assert await screen.run(tags) == "1 of 2,2 of 3,2 of 3"
    await follow(screen, "tbody a")
    await screen.until("document.querySelectorAll('article').length === 2")
    assert await screen.run("location.hash") == f"#/evaluations/support/{third}"
    about = "[...document.querySelectorAll('article .about .tag')].map(each => each.innerText).join()"
    assert await screen.run(about) == "same,1 of 1,fails now,0 of 1"
    marks = "[...document.querySelectorAll('article mark')].map(each => each.innerText.trim()).join()"
    assert await screen.run(marks) == "four,five"
    assert "Only in the earlier evaluation: long" in await screen.run(TEXT)
    assert "50 % −17 %" in await screen.run("document.querySelector('tbody').innerText.replace(/\\s+/g, ' ')")
    await follow(screen, ".seg button:last-child")
    await screen.until("document.querySelectorAll('article').length === 1")
    await screen.run("document.querySelector('main select').focus()")
    await screen.press("ArrowDown")
    await screen.until(f"location.hash.includes('against={first}')")
    await screen.until(f"{about} === 'passes now,1 of 1,fails now,0 of 1'")
    await screen.reload()
    await screen.until(f"{about} === 'passes now,1 of 1,fails now,0 of 1'")
    await screen.go(f"#/evaluations/support/{second}?against=none")
    await screen.until("document.querySelectorAll('article').length === 3")
    assert await screen.run(about) == "1 of 1,1 of 1,0 of 1"
    await screen.go(f"#/evaluations/support/{second}?show=failed")
    await screen.until("document.querySelectorAll('article').length === 1")
    assert "contains: missing: yes" in await screen.run("document.querySelector('article').innerText")


async def test_variants_are_paired_by_name_unless_there_is_one(evaluated, screen):
    """Two evaluations with one variant each are compared although the model has another name."""
    served, folder = evaluated
    path = write_cases(folder, CASES[:1])
    await run(path, ["Hello"], variants=("small",))
    await run(path, ["Hello Ada"], variants=("large",))
    both = await run(path, ["Hello"], variants=("large", "small"))
    await enter(served, screen, place="#/evaluations/support")
    await screen.until("document.querySelectorAll('tbody tr').length === 4")
    assert await screen.run("document.querySelectorAll('.chart')[0].querySelectorAll('g').length") == 2
    choose = "(() => { const box = document.querySelector('main select'); box.value = 'small'; box.dispatchEvent(new Event('change')); })()"
    await screen.run(choose)
    await screen.until("location.hash === '#/evaluations/support?variant=small'")
    about = "[...document.querySelectorAll('article .about .tag')].map(each => each.innerText).join()"
    await screen.go(f"#/evaluations/support/{both}")
    await screen.until("document.querySelectorAll('article').length === 2")
    assert await screen.run(about) == "large,fails now,0 of 1,small,new,0 of 1"
    (second,) = [each["id"] for each in await DatasetFolder(folder).evaluations("support") if each["variants"][0]["name"] == "large" and len(each["variants"]) == 1]  # fmt: skip
    await screen.go(f"#/evaluations/support/{second}")
    await screen.until(f"{about} === 'passes now,1 of 1'")
    assert "earlier small" in await screen.run("document.querySelector('tbody').innerText")


async def test_cases_are_found_and_lead_to_their_sessions(evaluated, screen):
    """Words and tags select cases. A long text is shortened. The session of a case opens by keys."""
    served, folder = evaluated
    write_cases(folder)
    await enter(served, screen, place="#/evaluations/support")
    await screen.until("document.querySelectorAll('.hit').length === 3")
    assert "actgent eval support.jsonl --agent AGENT --history" in await screen.run(TEXT)
    names = "[...document.querySelectorAll('.hit b')].map(each => each.innerText).join()"
    await screen.run("document.querySelector('main select').value = 'polite'")
    await screen.fill("main input[name=q]", "ADA")
    await screen.press("Enter")
    await screen.until(f"{names} === 'greet'")
    assert await screen.run("location.hash") == "#/evaluations/support?q=ADA&tag=polite"
    await screen.go("#/evaluations/support?tag=maths")
    await screen.until(f"{names} === 'sum'")
    parts = "[...document.querySelectorAll('.hit dd p')].map(each => each.innerText).join('|')"
    assert await screen.run(parts) == "2 and 2?|Thanks.|four"
    await screen.go("#/evaluations/support?q=nothing")
    await screen.until("document.querySelector('main').innerText.includes('No case matches.')")
    await screen.go("#/evaluations/support?q=long")
    await screen.until(f"{names} === 'long'")
    assert "end" not in await screen.run("document.querySelector('.hit dd').innerText")
    await follow(screen, ".hit .link")
    await screen.until("document.querySelector('.hit dd').innerText.includes('end')")
    await follow(screen, ".hit a")
    await screen.until("document.querySelector('main h1').innerText === 's1'")


async def test_cases_are_edited_and_removed_by_keys(evaluated, screen):
    """A rejected edit keeps the input. An edit of a case that has changed meanwhile does not overwrite the change."""
    served, folder = evaluated
    path = write_cases(folder, CASES[:2])
    await enter(served, screen, place="#/evaluations/support")
    names = "[...document.querySelectorAll('.hit b')].map(each => each.innerText).join()"
    await screen.until(f"{names} === 'greet,sum'")
    area = "document.querySelector('.hit textarea')"
    save, alert = ".hit form .main", "document.querySelector('.hit [role=alert]')?.innerText"
    await follow(screen, ".hit .btn")
    await screen.until(f"document.activeElement === {area}")
    assert json.loads(await screen.run(f"{area}.value")) == CASES[0]
    for content, reason in (
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"inputs": "x"}', "unknown key"),
    ):
        await screen.run(f"{area}.select()")
        await screen.fill(".hit textarea", content)
        await follow(screen, save)
        await screen.until(f"{alert}?.includes({json.dumps(reason)})")
        assert await screen.run(f"{area}.value") == content
    changed = {**CASES[0], "name": IMAGE, "expected": "Hello"}
    await screen.run(f"{area}.select()")
    await screen.fill(".hit textarea", json.dumps(changed))
    await follow(screen, save)
    await screen.until(f"{names} === {json.dumps(IMAGE + ',sum')}")
    assert [each["case"] for each in await DatasetFolder(folder).cases("support")] == [changed, CASES[1]]

    await follow(screen, ".hit:last-child .btn")
    await screen.until(f"document.activeElement === {area}")
    path.write_text(path.read_text().replace('"four"', '"4"'))
    await follow(screen, save)
    await screen.until(f"{alert}?.includes('was changed since it was read')")
    assert '"4"' in path.read_text()

    await follow(screen, ".hit .btn.bad")
    await screen.until("document.activeElement.innerText === 'Cancel'")
    await follow(screen, "dialog .btn.bad")
    await screen.until(f"!document.querySelector('dialog') && {names} === 'sum'")
    assert [each["name"] for each in await DatasetFolder(folder).cases("support")] == ["sum"]
    screen.tab.complaints.clear()  # the browser logs the 422 and the 409


async def test_a_turn_and_a_session_become_cases(evaluated, screen):
    """The dialog has the recorded answer. The name is chosen once. A rejected case keeps the input."""
    served, folder = evaluated
    await enter(served, screen, place="#/sessions/s1?agent=clerk")
    await screen.until("document.querySelectorAll('.feedback .btn').length === 6")
    await follow(screen, ".feedback .btn")
    await screen.until("document.activeElement.name === 'dataset'")
    assert await screen.run("document.querySelector('dialog textarea').value") == "Hello Ada"
    await screen.tab.call("Input.insertText", text="bad name")
    await screen.press("Enter")
    assert await screen.run("document.querySelector('dialog input').matches(':invalid')") is True
    await screen.run("document.querySelector('dialog input').select()")
    await screen.tab.call("Input.insertText", text="support")
    await screen.press("Enter")
    await screen.until("document.querySelector('dialog [role=status]')?.innerText.includes('s1/m1')")
    (case,) = await DatasetFolder(folder).cases("support")
    assert (case["case"]["input"], case["case"]["expected"]) == (["Hi, I am Ada."], "Hello Ada")
    await screen.press("Enter")
    await screen.until("!document.querySelector('dialog')")
    head = "[...document.querySelectorAll('.head .btn')].find(each => each.innerText === 'Add to dataset')"
    await screen.run(f"{head}.click()")
    await screen.until("document.querySelector('dialog input')?.value === 'support'")
    await screen.run("document.querySelector('dialog textarea').select()")
    await screen.tab.call("Input.insertText", text="four")
    await screen.run("document.querySelector('dialog .main').click()")
    await screen.until(
        "document.querySelector('dialog [role=status]')?.innerText.includes('as case s1 to support')"
    )
    assert [each.expected for each in load_cases(folder / "support.jsonl")] == ["Hello Ada", "four"]
    await screen.press("Escape")
    await screen.until("!document.querySelector('dialog')")
    await screen.run(f"{head}.click()")
    await screen.until("document.querySelector('dialog textarea')")
    await screen.run("document.querySelector('dialog textarea').select()")
    await screen.tab.call("Input.insertText", text="another")
    await screen.run("document.querySelector('dialog .main').click()")
    await screen.until(
        "document.querySelector('dialog .err')?.innerText.includes('different case with this name')"
    )
    assert await screen.run("document.querySelector('dialog textarea').value") == "another"
    screen.tab.complaints.clear()  # the browser logs the 409
    await screen.press("Escape")
    await screen.go("#/evaluations/support")
    await screen.until("document.querySelectorAll('.hit').length === 2")


async def test_a_dialog_that_is_opened_again_at_once_stays_open(evaluated, screen):
    """The late event of the closed dialog does not close the new one."""
    served, _ = evaluated
    await enter(served, screen, place="#/sessions/s1?agent=clerk")
    await screen.until("document.querySelector('.feedback .btn').innerText === 'Add to dataset'")
    await screen.run("document.querySelector('.feedback .btn').click()")
    await screen.until("document.querySelector('dialog [type=button]')")
    await screen.run("""(async () => {
      document.querySelector("dialog [type=button]").click();
      while (document.querySelector("dialog")) await Promise.resolve();
      document.querySelector(".feedback .btn").click();
      await new Promise((done) => setTimeout(done, 300));
    })()""")
    assert await screen.run("document.querySelector('dialog[open]') !== null") is True


async def test_a_corrected_answer_is_expected(evaluated, screen):
    """The dialog has the correction of a rating in place of the recorded answer."""
    served, _ = evaluated
    async with served.client() as ada:
        await ada.post("/v1/sessions/s1/messages/m2/feedback", json={"score": 0, "expected": "4"})
    await enter(served, screen, place="#/sessions/s1?agent=clerk")
    await screen.until("document.querySelectorAll('.judged').length === 1")
    await screen.until("document.querySelectorAll('.feedback .btn').length === 6")
    await screen.run("document.querySelectorAll('.feedback')[1].querySelector('.btn').click()")
    await screen.until("document.querySelector('dialog textarea')?.value === '4'")


@pytest.mark.parametrize("name", ["ada", "watcher"])
async def test_controls_need_the_scope_admin(evaluated, screen, name):
    """Without the scope, the page is not in the navigation, and sessions have no button for datasets."""
    served, folder = evaluated
    write_cases(folder)
    await enter(served, screen, name, "#/sessions/s1?agent=clerk")
    await screen.until("document.querySelector('.turn .tag')?.innerText === 'answered'")
    assert "Evaluations" not in await screen.run("document.querySelector('nav').innerText")
    assert "Add to dataset" not in await screen.run(TEXT)


async def test_servers_without_datasets_and_unusable_files_are_explained(serving, evaluated, screen):
    """The page names the option, the missing dataset, or the line of the file. The history of a wrong file stays visible.

    Without datasets, sessions have no button for datasets.
    """
    served, folder = evaluated
    path = write_cases(folder, CASES[:1])
    await run(path, ["Hello Ada"])
    path.write_text('{"input"\n')
    await enter(served, screen, place="#/evaluations/support")
    await screen.until(
        "document.querySelector('main .err')?.innerText.includes('support.jsonl:1 is not JSON')"
    )
    assert await screen.run("document.querySelectorAll('tbody tr').length") == 1
    for place in ("#/evaluations/other", "#/evaluations/support/other"):
        await screen.go(place)
        await screen.until("document.querySelector('main .err')?.innerText.includes('could not be loaded')")
    screen.tab.complaints.clear()  # the browser logs the 422 and each 404
    async with serving() as bare:
        await enter(bare, screen)
        await screen.until("document.querySelector('main .empty')?.innerText.includes('--datasets')")
        async with bare.client("root") as root:
            await root.put("/v1/sessions/s1", json={"agent": "clerk"})
            await root.post("/v1/sessions/s1/messages", json={"input": "Hi"}, headers={"prefer": "wait=30"})
        await screen.go("#/sessions/s1?agent=clerk")
        await screen.until("document.querySelector('.feedback .btn')")
        await screen.run(
            "fetch('v1/openapi.json').then(answer => answer.text())"
        )  # after the request of the buttons
        assert screen.asked("/v1/datasets") > 1
        assert "Add to dataset" not in await screen.run(TEXT)


async def test_untrusted_text_is_shown_as_text(evaluated, screen, axe):
    """Names, inputs, expected answers, tags, answers, reasons and variants are shown literally, and fit in a narrow window."""
    served, folder = evaluated
    case = {"name": IMAGE, "input": IMAGE, "expected": {IMAGE: IMAGE}, "tags": [IMAGE], "judge": IMAGE, "session": {"agent": IMAGE, "id": IMAGE}}  # fmt: skip
    path = write_cases(folder, [case, {**case, "name": f"{IMAGE}2", "session": [IMAGE]}])
    known = [Case(name=IMAGE, input=IMAGE, expected=IMAGE, checks=[lambda _: IMAGE, contains(IMAGE)])]
    await run(path, ["x"], cases=known, variants=(IMAGE, f"{IMAGE}2"))
    last = await run(path, [IMAGE], cases=known, variants=(IMAGE, f"{IMAGE}2"))
    await enter(served, screen, place="#/evaluations/support")
    await screen.until("document.querySelectorAll('.hit').length === 2")
    assert await screen.run("document.querySelectorAll('.hit a').length") == 1
    for place in ("#/evaluations/support", f"#/evaluations/support/{last}"):
        await screen.go(place)
        await screen.until("document.querySelectorAll('.hit, article').length === 2")
        assert (await screen.run(TEXT)).count("onerror=") > 5
        assert await screen.run("document.querySelectorAll('main img, main script').length") == 0
        assert "pwned" not in await screen.run("document.title")
        assert await axe() == [], place
        await screen.tab.look(360, "light")
        assert await screen.run(CUT) == "", place
        await screen.tab.look(1280, "light")
