"""The server for the MCP conformance suite: tools, prompts and resources with the names of the suite.

`python -m tests.interop.mcp.fixture_server` prints its URL and serves until Ctrl-C. The suite sends no token,
so the program adds the token of the gateway to each request.
"""

import base64
from contextlib import asynccontextmanager
from functools import partial

import mcp_types as types
import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from actgent import (
    ApprovalRequired,
    BareAgent,
    File,
    GatewayLimits,
    Image,
    ScriptedLLM,
    ToolContext,
    ToolError,
    open_gateway,
    open_runtime,
    tool,
)
from actgent.interop.mcp import MCPCatalog, MCPProtocol, mcp_caller, mcp_prompt, mcp_resource

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)
WAV = b"RIFF$\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00@\x1f\x00\x00@\x1f\x00\x00\x01\x00\x08\x00data\x00\x00\x00\x00"
PAUSE_SECONDS = 0.05
"""Seconds between notifications, as the suite requires."""
OPTIONS = ["option1", "option2", "option3"]


def object_of(required=True, **properties):
    return {"type": "object", "properties": properties, **({"required": [*properties]} if required else {})}


def form(question, **properties):
    params = types.ElicitRequestFormParams(message=question, requested_schema=object_of(**properties))
    return types.ElicitRequest(params=params)


def sample(prompt, tokens=100):
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=prompt))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=tokens)
    )


TEXT = {"type": "string"}


# --- results -------------------------------------------------------------------------------


@tool(effect="pure")
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@tool(effect="pure")
def test_image_content() -> Image:
    """Return a picture."""
    return Image(media_type="image/png", data=PNG)


@tool(effect="pure")
def test_audio_content() -> File:
    """Return a sound."""
    return File(media_type="audio/wav", data=WAV)


@tool(effect="pure")
def test_embedded_resource() -> File:
    """Return a text file."""
    return File(media_type="text/plain", data=b"This is an embedded resource content.", name="embedded.txt")


@tool(effect="pure")
def test_multiple_content_types() -> list[object]:
    """Return a text, a picture and a file."""
    document = File(media_type="application/json", data=b'{"test":"data","value":123}', name="mixed.json")
    return ["Multiple content types test:", Image(media_type="image/png", data=PNG), document]


@tool
def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


# --- notifications -------------------------------------------------------------------------------


@tool
async def test_tool_with_logging() -> str:
    """Send log messages."""
    caller = mcp_caller()
    await caller.log("info", "Tool execution started")
    await trio.sleep(PAUSE_SECONDS)
    await caller.log("info", "Tool processing data")
    await trio.sleep(PAUSE_SECONDS)
    await caller.log("info", "Tool execution completed")
    return "Tool with logging executed"


@tool
async def test_logging_tool() -> str:
    """Send a log message."""
    await mcp_caller().log("info", "a message")
    return "logged"


@tool
async def test_tool_with_progress(context: ToolContext) -> str:
    """Report progress."""
    for done in (0, 50, 100):
        context.progress(done, 100)
        await trio.sleep(PAUSE_SECONDS)
    return "Tool with progress executed"


# --- requests to the client -------------------------------------------------------------------------------


@tool
async def test_sampling(prompt: str) -> str:
    """Ask the model of the client."""
    result = (await mcp_caller().request({"answer": sample(prompt)}))["answer"]
    return f"LLM response: {result.content.text}"


@tool
async def test_elicitation(message: str) -> str:
    """Ask the user."""
    values = await mcp_caller().ask(message, object_of(username=TEXT, email=TEXT))
    return f"User response: {values}"


@tool
async def test_elicitation_sep1034_defaults() -> str:
    """Ask the user, with default values."""
    values = await mcp_caller().ask(
        "Please check the values",
        object_of(
            required=False,
            name={"type": "string", "default": "John Doe"},
            age={"type": "integer", "default": 30},
            score={"type": "number", "default": 95.5},
            status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            verified={"type": "boolean", "default": True},
        ),
    )
    return f"Elicitation completed: {values}"


@tool
async def test_elicitation_sep1330_enums() -> str:
    """Ask the user to choose."""
    titled = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
    values = await mcp_caller().ask(
        "Please choose",
        object_of(
            required=False,
            untitledSingle={"type": "string", "enum": OPTIONS},
            titledSingle={"type": "string", "oneOf": titled},
            legacyEnum={
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            untitledMulti={"type": "array", "items": {"type": "string", "enum": OPTIONS}},
            titledMulti={"type": "array", "items": {"anyOf": titled}},
        ),
    )
    return f"Elicitation completed: {values}"


@tool
async def test_input_required_result_elicitation() -> str:
    """Ask for a name."""
    values = await mcp_caller().ask("What is your name?", object_of(name=TEXT), key="user_name")
    return f"Hello, {values}!"


@tool
async def test_input_required_result_sampling() -> str:
    """Ask the model of the client."""
    key = "capital_question"
    result = (await mcp_caller().request({key: sample("What is the capital of France?")}))[key]
    return result.content.text


@tool
async def test_input_required_result_list_roots() -> str:
    """List the roots of the client."""
    result = (await mcp_caller().request({"client_roots": types.ListRootsRequest()}))["client_roots"]
    return ", ".join(str(each.uri) for each in result.roots)


@tool
async def test_input_required_result_request_state() -> str:
    """Ask for a confirmation."""
    await mcp_caller().ask("Please confirm", object_of(ok={"type": "boolean"}), key="confirm")
    return "state-ok"


@tool
async def test_input_required_result_multiple_inputs() -> str:
    """Ask the user, the model and for the roots at once."""
    results = await mcp_caller().request(
        {
            "user_name": form("What is your name?", name=TEXT),
            "greeting": sample("Generate a greeting", 50),
            "client_roots": types.ListRootsRequest(),
        }
    )
    return f"{len(results)} results"


@tool
async def test_input_required_result_multi_round() -> str:
    """Ask two questions, one after the other."""
    caller = mcp_caller()
    name = await caller.ask("Step 1: What is your name?", object_of(name=TEXT), key="step1")
    colour = await caller.ask("Step 2: What is your favorite color?", object_of(color=TEXT), key="step2")
    return f"{name}: {colour}"


@tool
def test_input_required_result_tampered_state(context: ToolContext) -> str:
    """Ask as tools of agents ask."""
    if context.approval is None:
        raise ApprovalRequired("Continue?", form=object_of(ok={"type": "boolean"}), again=True)
    return "continued"


@tool
async def test_input_required_result_capabilities() -> str:
    """Ask the user if the client has forms, else its model."""
    caller = mcp_caller()
    await caller.request({"input": form("Your name?", name=TEXT) if caller.shows_forms else sample("Hello")})
    return "answered"


@tool
async def test_streaming_elicitation() -> str:
    """Ask for a name."""
    return f"Hello, {await mcp_caller().ask('What is your name?', object_of(name=TEXT))}!"


@tool
async def test_missing_capability() -> str:
    """Need the model of the client."""
    await mcp_caller().request({"answer": sample("Hello")})
    return "sampled"


# --- schemas -------------------------------------------------------------------------------

SCHEMA_2020_12 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {"$anchor": "addressDef", "type": "object", "properties": {"street": TEXT, "city": TEXT}}
    },
    "properties": {
        "name": TEXT,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": TEXT,
        "email": TEXT,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@tool(parameters=SCHEMA_2020_12)
def json_schema_2020_12_tool(**values: object) -> str:
    """Take an address."""
    return str(values)


@tool(parameters=object_of(region={"type": "string", "x-mcp-header": "Region"}))
def region_of(region: str) -> str:
    """Return the region that the request's header names."""
    return region


# --- prompts and resources -------------------------------------------------------------------------------


@mcp_prompt
def test_simple_prompt() -> str:
    """Return a text."""
    return "This is a simple prompt for testing."


@mcp_prompt(completions={"arg1": ["testing", "paris"]})
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """Return the arguments.

    Args:
        arg1: First argument.
        arg2: Second argument.
    """
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@mcp_prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[object]:  # noqa: N803 - the suite names it
    """Return a file."""
    return [
        File(media_type="text/plain", data=b"Embedded resource content for testing.", name=resourceUri),
        "Please process the embedded resource above.",
    ]


@mcp_prompt
def test_prompt_with_image() -> list[object]:
    """Return a picture."""
    return [Image(media_type="image/png", data=PNG), "Please analyze the image above."]


@mcp_prompt
async def test_input_required_result_prompt() -> str:
    """Ask for the context."""
    question = "What context should the prompt use?"
    return f"Use {await mcp_caller().ask(question, object_of(context=TEXT), key='user_context')}"


@mcp_resource("test://static-text", name="static_text")
def static_text() -> str:
    """Return a text."""
    return "This is the content of the static text resource."


@mcp_resource("test://static-binary", media_type="image/png")
def static_binary() -> bytes:
    """Return a picture."""
    return PNG


@mcp_resource("test://watched-resource")
def watched_resource() -> str:
    """Return a text that changes."""
    return "now"


@mcp_resource("test://template/{id}/data", media_type="application/json")
def data_of(id: str) -> dict[str, object]:  # noqa: A002 - the suite names it
    """Return the data of an id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


# --- the program -------------------------------------------------------------------------------


def make_catalog():
    """Return the catalog, with two tools that change it."""

    @tool
    async def test_trigger_tool_change() -> str:
        """Change the list of tools."""
        await catalog.update(tools=list(catalog.tools))
        return "changed"

    @tool
    async def test_trigger_prompt_change() -> str:
        """Change the list of prompts."""
        await catalog.update(prompts=list(catalog.prompts.values()))
        return "changed"

    here = globals()
    named = [value for name, value in here.items() if name.startswith("test_")]
    catalog = MCPCatalog(
        tools=[
            *(each for each in named if hasattr(each, "execute")),
            test_trigger_tool_change,
            test_trigger_prompt_change,
            json_schema_2020_12_tool,
            region_of,
        ],
        prompts=[each for each in named if not hasattr(each, "execute")],
        resources=[static_text, static_binary, watched_resource, data_of],
    )
    return catalog


@asynccontextmanager
async def serve_fixture():
    """Serve the program on loopback. Yield the URL of the MCP endpoint."""
    limits = GatewayLimits(rate=1_000, burst=1_000)  # the suite sends 200 requests in a second
    protocols = [MCPProtocol(catalog=make_catalog())]
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(BareAgent("clerk", llm=ScriptedLLM(lambda _: "good day"), goal="help"))
        async with (
            open_gateway(runtime, bind=None, protocols=protocols, dashboard=False, limits=limits) as gateway,
            trio.open_nursery() as nursery,
        ):

            async def app(scope, receive, send):
                if scope["type"] == "http":
                    token = (b"authorization", f"Bearer {gateway.key}".encode())
                    scope = {**scope, "headers": [*scope["headers"], token]}
                await gateway.app(scope, receive, send)

            config = Config()
            config.bind = ["127.0.0.1:0"]
            config.accesslog = config.errorlog = None
            urls = await nursery.start(partial(serve, app, config, mode="asgi"))
            yield f"{urls[0]}/mcp"
            nursery.cancel_scope.cancel()


async def main():
    async with serve_fixture() as url:
        print(url, flush=True)  # noqa: T201 - for a manual run of the suite
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
