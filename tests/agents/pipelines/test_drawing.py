"""Drawings of pipelines as text and as Mermaid, before and after a run."""

import re

from actgent import BareAgent, Pipeline, PipelineStep, ScriptedLLM, When


def script(chat):
    if "bad" in chat.messages[0].parts[0].text:
        raise ConnectionError
    return "good"


ONE = BareAgent("one", llm=ScriptedLLM(script))
TWO = BareAgent("a second", llm=ScriptedLLM(script))


def made():
    return Pipeline(
        "p",
        steps=[
            PipelineStep("first", agent=ONE, message="x"),
            PipelineStep("bad-one", agent=TWO, message="bad", retries=1),
            PipelineStep("never", agent=ONE, message="x", when=When.equal("first", 'a "quote" <b>')),
            PipelineStep("end", agent=ONE, message="{bad-one}{first}", timeout=5),
        ],
        answer="first",
    )


async def test_text_drawing_shows_groups_and_status():
    """The text shows the groups from top to bottom. After a run it also shows the status and the reason of each step."""
    async with made() as pipeline:
        assert pipeline.draw() == (
            "  1 ┬ first    one\n"
            "    └ bad-one  a second  retries 1\n"
            "  2 ┬ never    one       ← first  when first == 'a \"quote\" <b>'\n"
            "    └ end      one       ← bad-one, first  timeout 5 s\n"
        )
        after = pipeline.draw(await pipeline.process())
    assert after == (
        "  1 ┬ ✓ first    one\n"
        "    └ ✗ bad-one  a second  retries 1\n"
        "        scripted: its client raised ConnectionError\n"
        "  2 ┬ – never    one       ← first  when first == 'a \"quote\" <b>'\n"
        "    │   the condition is false: first == 'a \"quote\" <b>'\n"
        "    └ – end      one       ← bad-one, first  timeout 5 s\n"
        "        step 'bad-one' failed: scripted: its client raised Connecti…\n"
    )


async def test_mermaid_drawing_escapes_names():
    """Names and texts are escaped in labels, and each id has word characters only."""
    async with made() as pipeline:
        plain = pipeline.to_mermaid()
        result = await pipeline.process()
        coloured = pipeline.to_mermaid(result)
    assert plain.splitlines()[0] == "flowchart TD"
    assert '    s_bad_m_one["bad-one<br/><i>a second</i>"]' in plain.splitlines()
    assert "w_never{\"first == 'a #quot;quote#quot; #lt;b#gt;'\"} --> s_never" in plain
    assert "    s_first --> w_never" in plain.splitlines()
    assert "    s_bad_m_one --> s_end" in plain.splitlines()
    assert set(re.findall(r"^    class (\w+) (\w+)$", coloured, re.MULTILINE)) == {
        ("s_first", "done"),
        ("s_bad_m_one", "failed"),
        ("s_never", "skipped"),
        ("s_end", "skipped"),
    }
    assert coloured.startswith(plain)
