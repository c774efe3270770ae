"""Markdown of answers is formatted as DOM nodes, without scripts, external pictures or HTML."""

import json

import pytest

from actgent import BareAgent, ScriptedLLM

from .test_dashboard import link_of

RENDER = """(async () => {
  const [{ render }, { html }, { Markdown }] = await Promise.all(
    ["vendor/preact.js", "parts.js", "markdown.js"].map(each => import(new URL(`static/${each}`, document.baseURI).href)));
  const box = document.createElement("section");
  document.querySelector("main").append(box);
  render(html`<${Markdown} text=${%s} />`, box);
  return box.firstChild.innerHTML;
})()"""
ATTACKS = [
    "<img src=x onerror=document.title='pwned'>",
    "<script>document.title='pwned'</script>",
    "[click](javascript:document.title='pwned')",
    "[click](JaVaScRiPt:document.title='pwned')",
    "[click](data:text/html,<script>document.title='pwned'</script>)",
    "[click](vbscript:x)",
    "[click](<javascript:document.title='pwned'>)",
    "![picture](https://evil.example/pixel.png)",
    "![x](javascript:document.title='pwned')",
    '[x](https://a.example/"onmouseover=document.title="pwned)',
    "<https://a.example/'onclick=x>",
    "<javascript:alert(1)>",
    "`<img src=x onerror=document.title='pwned'>`",
    "```html\n<img src=x onerror=document.title='pwned'>\n```",
    "| <img src=x onerror=1> | b |\n|---|---|\n| <svg onload=document.title='pwned'> | x |",
    "> <iframe src=javascript:document.title='pwned'></iframe>",
    "- <a href=javascript:document.title='pwned'>x</a>",
    "**<b onclick=1>bold</b>**",
    "&lt;img src=x onerror=1&gt; &#60;script&#62;",
    "[a](https://a.example/\n)[b](java\nscript:x)",
    "<style>*{display:none}</style><form action=https://evil.example><input></form>",
    "\u202ejavascript:x [\u202e](javascript:x)",
]
SAFE_TAGS = {"P", "A", "SPAN", "CODE", "PRE", "STRONG", "EM", "DEL", "UL", "OL", "LI", "BLOCKQUOTE", "HR"}
SAFE_TAGS |= {"DIV", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD"}
SAFE_NAMES = {"class", "href", "target", "rel", "tabindex", "role", "aria-label", "scope", "start"}


@pytest.fixture
async def page(serving, screen):
    async with serving() as served:
        await screen.open(link_of(served))
        await screen.until("document.querySelector('main .empty')")

        async def render(text):
            return await screen.run(RENDER % json.dumps(text))

        yield render


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain <b>text</b>", "<p>plain &lt;b&gt;text&lt;/b&gt;</p>"),
        ("two\nlines", "<p>two\nlines</p>"),
        ("one\n\ntwo", "<p>one</p><p>two</p>"),
        ("# Title #", '<p class="title t1">Title</p>'),
        ("a **b** *c* ~~d~~ `e`", "<p>a <strong>b</strong> <em>c</em> <del>d</del> <code>e</code></p>"),
        ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
        ("snake_case_name and 2*3*4", "<p>snake_case_name and 2<em>3</em>4</p>"),
        (r"\*not\*", "<p>*not*</p>"),
        ("- a\n- b\n  - c", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("> a\n> b", "<blockquote><p>a\nb</p></blockquote>"),
        ("---", "<hr>"),
        (
            "```py\nx = 1 < 2\n```",
            '<pre tabindex="0" role="group" aria-label="Code, py"><code>x = 1 &lt; 2</code></pre>',
        ),
        ("```\nopen", '<pre tabindex="0" role="group" aria-label="Code"><code>open</code></pre>'),
        (
            "[a](https://b.example/c)",
            '<p><a href="https://b.example/c" target="_blank" rel="noopener noreferrer nofollow">a</a></p>',
        ),
        (
            "see https://b.example/c.",
            '<p>see <a href="https://b.example/c" target="_blank" rel="noopener noreferrer nofollow">https://b.example/c</a>.</p>',
        ),
        (
            "|a|b|\n|-|-|\n|1|`x`|",
            '<div class="scroll" tabindex="0" role="group" aria-label="Table"><table><thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead><tbody><tr><td>1</td><td><code>x</code></td></tr></tbody></table></div>',
        ),
    ],
    ids=lambda value: (
        value[:12].encode("unicode_escape").decode().replace("\\", "/") if isinstance(value, str) else None
    ),
)
async def test_markdown_is_formatted(page, text, shown):
    assert await page(text) == shown


async def test_attacks_stay_text(page, screen):
    """No attack creates an element, attribute or address outside of the allowlists."""
    for text in ATTACKS:
        await page(text)
        found = await screen.run(
            "[...document.querySelectorAll('main section')].at(-1).firstChild"
            " && [...[...document.querySelectorAll('main section')].at(-1).querySelectorAll('.md *')]"
            ".map(each => [each.tagName, [...each.attributes].map(one => [one.name, one.value])])"
        )
        for tag, attributes in found:
            assert tag in SAFE_TAGS, (text, tag)
            for name, value in attributes:
                assert name in SAFE_NAMES, (text, name)
                assert name != "href" or value.startswith(("http://", "https://", "mailto:")), (text, value)
    assert "pwned" not in await screen.run("document.title")
    asked = [each for each in screen.tab.complaints if "evil.example" in each]
    assert asked == []


async def test_long_and_nested_texts_end(page, screen):
    """The renderer ends in time for hostile lengths and depths."""
    for text in (
        "*" * 50_000,
        "[" * 50_000,
        "`" * 20_001 + "a",
        "> " * 5_000 + "a",
        "- " * 5_000 + "a",
        "![" * 20_000,
        "**a " * 20_000,
        "|" * 20_000 + "\n" + "|-" * 10_000,
        "<https://" * 10_000,
        "_a" * 30_000,
        "a\n" * 30_000,
        "~~" * 20_000,
    ):
        shown = await page(text)
        assert len(shown) > 3


async def test_answers_are_shown_as_markdown(serving, screen):
    """Complete and partial answers are formatted. Messages of users are not."""
    answer = "# Result\n\n- **one**\n- two\n\n<img src=x onerror=document.title='pwned'>"
    async with serving(agents=[BareAgent("clerk", llm=ScriptedLLM([answer]))]) as served:
        session = await served.runtime.agents.opener("clerk").create("ada", "**words**", session_id="s1")
        await session.wait_idle()
        await screen.open(link_of(served))
        await screen.until("document.querySelector('tbody a')")
        await screen.go("#/sessions/s1?agent=clerk")
        await screen.until("document.querySelectorAll('.turn .md li').length === 2")
        assert await screen.run("document.querySelector('.turn .user p').textContent") == "**words**"
        assert await screen.run("document.querySelectorAll('main img, main script').length") == 0
        assert await screen.run("document.querySelector('.md').innerText.includes('<img src=x')")
