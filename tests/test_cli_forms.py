"""An approver fills in the form of a tool call at the terminal."""

import base64

import pytest
import trio

from actgent import ApprovalRequest, BareAgent, ScriptedLLM, ToolCall, ToolContext, tool
from actgent.cli.console.form_input import fill_form
from actgent.cli.console.terminal_message_exchange import answer
from actgent.cli.terminal_io import Terminal
from actgent.forms import Field, fields_of, to_form


@pytest.fixture
def shown(capsys):
    return lambda: "".join(capsys.readouterr())


def typing(*lines):
    left = iter([*lines, None, None])

    async def receive():
        await trio.lowlevel.checkpoint()
        return next(left)

    return receive


async def test_form_values_are_passed_to_the_call(shown):
    """Question, risk, options and defaults are shown as data. An invalid line repeats the prompt; an empty line skips an optional field."""
    got = []
    form = [
        Field("nights", "number", minimum=1, label="How many nights?\x1b[2J"),
        Field("room", "select", options=["single", "double"]),
        Field("note", required=False),
        Field("agreed", "confirm"),
    ]

    @tool(approval=ApprovalRequest("Book it?", form=form, risk="high"))
    async def book(context: ToolContext) -> str:
        """Book."""
        got.append(dict(context.approval.content))
        return "booked"

    llm = ScriptedLLM([ToolCall("book", {}), lambda chat: chat.messages[-1].parts[0].text])
    async with BareAgent("a", llm=llm, tools=[book]) as agent:
        session = await agent.create_session("ada")
        lines = ["yes", "fill", "many", "0", "2", "", "yes", "f", "2", "double", "", "yes"]
        assert await answer(agent, session, "go", Terminal(), receive=typing(*lines))
    text = shown()
    assert got == [{"nights": 2, "room": "double", "agreed": True}]
    assert "Risk: high" in text
    assert "1=single, 2=double" in text
    assert "\x1b[2J" not in text
    assert "'many' must be a number" in text
    assert "does not match the form" in text  # a yes alone, and no nights


async def test_each_field_kind_is_parsed(shown, tmp_path):
    """Options by number or text, several options, dates, files and JSON. An empty line selects the default."""
    (tmp_path / "p.txt").write_bytes(b"hello")
    form = to_form(
        [
            Field("yes", "boolean"),
            Field("extras", "multiselect", options=["tea", "view", "sun"]),
            Field("day", "date"),
            Field("at", "datetime"),
            Field("file", "file"),
            Field("more", "custom", schema={"type": "object"}),
            Field("name", default="Ada"),
            Field("left", "number", required=False),
        ]
    )
    lines = [
        "n",
        "²",
        "9" * 5_000,
        "1, sun",
        "31.1.",
        "2027-01-31",
        "2027-01-31T09:30",
        "2027-01-31T09:30:00+01:00",
    ]
    lines += ["/nowhere", str(tmp_path / "p.txt"), "{", '{"a": 1}', "", ""]
    values = await fill_form(fields_of(form), Terminal(), typing(*lines))
    data = base64.b64encode(b"hello").decode()
    assert values == {
        "yes": False,
        "extras": ["tea", "sun"],
        "day": "2027-01-31",
        "at": "2027-01-31T09:30:00+01:00",
        "file": {"name": "p.txt", "media_type": "text/plain", "data": data},
        "more": {"a": 1},
        "name": "Ada",
    }
    text = shown()
    assert "'²' is not one of the options" in text
    assert f"{'9' * 50!r} is not one of the options" in text
    assert "no date" in text
    assert "cannot be read" in text


@pytest.mark.parametrize(
    ("field", "lines", "values"),
    [
        (Field("n", "number"), ["nan", "inf", "1e999", "7"], {"n": 7}),
        (Field("d", "date"), ["20270131", "2027-W05-7", "2027-01-31"], {"d": "2027-01-31"}),
        (
            Field("j", "custom", schema={}),
            ["[" * 100_000, "NaN", '{"a": 1, "a": 2}', '"\\ud800"', "[1]"],
            {"j": [1]},
        ),
        (Field("f", "file", required=False), ["~nobody-is-called-so/x", "/dev/zero", "/dev", ""], {}),
    ],
    ids=lambda value: value.kind if isinstance(value, Field) else "",
)
async def test_invalid_form_is_prompted_again(field, lines, values, shown):
    """Each line except the last is invalid. The terminal repeats the prompt and keeps the completed fields."""
    asked = fields_of(to_form([Field("name"), field]))
    assert await fill_form(asked, Terminal(), typing("Ada", *lines)) == {"name": "Ada", **values}
    assert shown().count(f"{field.name} (") == len(lines)


@pytest.mark.parametrize("line", [".", None])
async def test_cancelled_form_makes_no_decision(line, shown):
    """A dot or the end of the input cancels the form."""
    values = await fill_form(fields_of(to_form([Field("a"), Field("b")])), Terminal(), typing("x", line))
    assert values is None
    assert "cancels the form" in shown()
