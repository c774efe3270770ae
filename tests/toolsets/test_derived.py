"""Toolsets derived from other toolsets."""

import pytest
import trio

from actgent import (
    ApprovalRequest,
    ConfigurationError,
    StaticToolset,
    ToolCall,
    ToolContext,
    open_toolset,
    tool,
)
from actgent.errors import InvalidArguments, ToolsetUnavailable
from actgent.tools.tool_execution import Batch
from actgent.tools.tool_registry import ToolRegistry
from actgent.toolsets.toolset import Toolset


@tool(thread=False, effect="pure")
def weather(city: str, units: str = "metric", key: str = "") -> str:
    """Tell the weather of a city."""
    return f"{city} {units} {key}"


@tool(thread=False)
def send_mail(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


WORLD = StaticToolset("world", [weather, send_mail])


async def tools_of(toolset):
    async with open_toolset(toolset) as tools:
        return {each.name: each for each in tools()}


async def result(one, **arguments):
    registry = ToolRegistry([one])
    batch = Batch([ToolCall(one.name, arguments, "c1")], registry)
    await batch.run()
    return batch.results()[0]


@pytest.mark.parametrize("keep", [["weather"], "weather", lambda each: each.effect == "pure"])
async def test_derived_toolset_filters_tools(keep):
    """Tools are kept by name or by a function."""
    assert list(await tools_of(WORLD.filtered(keep))) == ["weather"]


@pytest.mark.parametrize(
    ("derived", "expected"),
    [
        (WORLD.filtered(["weather", "wether"]), r"filtered\(\) names the tool 'wether'"),
        (WORLD.renamed({"wether": "sky"}), r"renamed\(\) names the tool 'wether'"),
    ],
    ids=["filtered", "renamed"],
)
async def test_a_name_that_no_tool_has_is_rejected(derived, expected):
    """The error names the toolset's tools. Tools that a server removes later are no error."""
    with pytest.raises(ConfigurationError, match=expected + r".*tools: weather, send_mail"):
        derived.tools_from(WORLD.tools)
    known = WORLD.filtered(["weather", "send_mail"])
    assert len(known.tools_from(WORLD.tools)) == 2
    assert len(known.tools_from(WORLD.tools[:1])) == 1


async def test_names_change_and_the_tools_stay():
    """A prefix and new names apply only to the copies."""
    assert list(await tools_of(WORLD.prefixed("w_"))) == ["w_weather", "w_send_mail"]
    assert list(await tools_of(WORLD.renamed({"weather": "sky"}))) == ["sky", "send_mail"]
    assert list(await tools_of(WORLD.renamed(str.upper).prefixed("x"))) == ["xWEATHER", "xSEND_MAIL"]
    assert weather.name == "weather"


async def test_derived_toolset_changes_options():
    """Approval, effect and cache are set on the copies. Tools with effect "once" are not cached."""
    tools = await tools_of(
        WORLD.approved(ApprovalRequest("Really?")).with_effect(lambda _: "idempotent").cached(7)
    )
    assert [(each.approval, each.effect, each.cache) for each in tools.values()] == [
        (ApprovalRequest("Really?"), "idempotent", 7)
    ] * 2
    assert (await tools_of(WORLD.cached()))["send_mail"].cache == 0
    assert (await tools_of(WORLD.approved()))["send_mail"].approval is True


async def test_rule_decides_approval_for_each_call():
    """A rule decides for each call whether it needs an approval."""
    tools = await tools_of(WORLD.approved(lambda call: call.arguments["to"] != "ann"))
    registry = ToolRegistry([tools["send_mail"]])
    batch = Batch([ToolCall("send_mail", {"to": name}, name) for name in ("ann", "bob")], registry)
    await batch.run()
    assert list(batch.awaiting_approval) == [1]
    assert batch.results()[0].content == "sent to ann"


async def test_a_failing_approval_rule_runs_no_tool():
    """A rule that raises is an error of the call, which does not run."""
    tools = await tools_of(WORLD.approved(lambda call: call.arguments["nobody"]))
    assert "the approval rule of this tool failed" in (await result(tools["send_mail"], to="bob")).error


async def test_configured_values_are_hidden_and_checked():
    """The function gets the values and the schema omits them. A tool's value overrides its toolset's."""
    tools = await tools_of(WORLD.configured(key="own").configured(units="imperial").configured(key="outer"))
    told = tools["weather"]
    assert set(told.parameters["properties"]) == {"city"}
    assert (await result(told, city="Oslo")).content == "Oslo imperial own"
    assert "units" in (await result(told, city="Oslo", units="metric")).error
    with pytest.raises(InvalidArguments):
        told.argument_validator.validate({"city": "Oslo", "key": "stolen"})
    assert await told.execute({"city": "Oslo"}, ToolContext()) == "Oslo imperial own"


async def test_model_cannot_override_hidden_configuration():
    """A configured value overrides an argument that a pattern property accepts."""
    text = {"type": "string"}
    schema = {"type": "object", "properties": {"account": text}, "patternProperties": {"": text}}

    @tool(parameters=schema, effect="pure", thread=False)
    def pay(account: str) -> str:
        """Pay from an account."""
        return account

    tools = await tools_of(StaticToolset("bank", [pay]).configured(account="mine"))
    assert (await result(tools["pay"], account="yours")).content == "mine"


async def test_shown_configuration_can_be_overridden_by_the_model():
    """A parameter in `shown` stays in the schema, and the model's argument overrides the value."""
    told = (await tools_of(WORLD.configured({"city": "Oslo"}, shown=["city"])))["weather"]
    assert "city" in told.parameters["properties"]
    assert "required" not in told.parameters
    assert (await result(told)).content == "Oslo metric "
    assert (await result(told, city="Bergen")).content == "Bergen metric "


@pytest.mark.parametrize(
    ("values", "expected"),
    [({"town": "Oslo"}, "names the parameter 'town'"), ({"city": 7}, "does not match")],
)
async def test_invalid_configuration_is_rejected(values, expected):
    """Unknown names and values that do not fit the schema raise when the tools are published."""
    with pytest.raises((ConfigurationError, ExceptionGroup)) as caught:
        await tools_of(WORLD.configured(values))
    found = caught.value.exceptions[0] if isinstance(caught.value, ExceptionGroup) else caught.value
    assert expected in str(found)


async def test_silent_toolset_times_out(autojump_clock):
    """Without an agent, a toolset that publishes no tools also times out."""

    class Silent(Toolset):
        name = "silent"

        async def run(self, publish):
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await tools_of(Silent())
    assert caught.group_contains(ToolsetUnavailable, match="silent.* did not publish tools within 10 s")


@pytest.mark.parametrize("name", ["", "x" * 65, "a\nb", 7])
def test_toolset_name_has_to_be_printable(name):
    """The name of a toolset must be printable."""
    with pytest.raises(ConfigurationError, match="printable"):
        StaticToolset(name, [])


def test_value_that_is_not_a_tool_is_rejected():
    """The error has a remedy."""
    with pytest.raises(ConfigurationError, match="decorate the function with @tool"):
        StaticToolset("x", [print])
