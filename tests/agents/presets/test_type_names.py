"""An answer names its type: the event and the tool are those of the named type, in every order of the types."""

import json

import pytest

from actgent import (
    AgentBuilder,
    ClassificationType,
    ConfigurationError,
    Instruction,
    ReActAgent,
    RouterAgent,
    SchemaBuilder,
    ScriptedLLM,
    SimpleAgent,
    tool,
)
from actgent.cli.main import main

CREATE = {
    "name": "Create",
    "description": "Make a user.",
    "schema": {"name": "<name>"},
    "tool": "create_user",
}
DELETE = {
    "name": "Delete",
    "description": "Remove a user.",
    "schema": {"name": "<name>"},
    "tool": "delete_user",
}
WIDE = {"name": "Rename", "schema": {"name": "<name>", "new_name": "<name>"}, "tool": "rename_user"}


@tool(thread=False)
def create_user(name: str) -> str:
    """Make a user."""
    return f"created {name}"


@tool(thread=False)
def delete_user(name: str) -> str:
    """Remove a user."""
    return f"deleted {name}"


@tool(thread=False)
def rename_user(name: str, new_name: str = "") -> str:
    """Rename a user."""
    return f"renamed {name}"


def react(content, **members):
    action = {"response_purpose": "DIRECT_RESPONSE", "response_content": content, **members}
    return json.dumps({"question_nature": "SIMPLE", "primary_action": action})


async def results_of(types, *answers, kind=ReActAgent):
    """Return the events, the results of tools, the reply and the number of model calls of one turn."""
    tools = {each.name: each for each in (create_user, delete_user, rename_user)}
    used = [tools[name] for name in dict.fromkeys(each["tool"] for each in types if each.get("tool"))]
    llm = ScriptedLLM([*answers])
    events, results = [], []
    async with kind("clerk", llm=llm, types=types, tools=used) as agent:
        session = await agent.create_session("ada")
        session.on_event(lambda event: events.append((event.name, event.data)))
        session.on_tool_result(lambda result: results.append(result.text))
        reply = await agent.run("delete bob", session=session)
    return events, results, reply, len(llm.chats)


@pytest.mark.parametrize("types", [(CREATE, DELETE), (DELETE, CREATE), (WIDE, CREATE, DELETE)])
@pytest.mark.parametrize(
    "answer",
    [
        react({"messageType": "Delete", "name": "bob"}),
        react({"messageType": "Delete", "content": {"name": "bob"}}),
        react({"name": "bob"}, messageType="Delete"),
        react({"messageType": "Delete", "name": "bob"}, messageType="Delete"),
    ],
)
async def test_react_runs_the_tool_of_the_named_type(types, answer):
    """The order and the width of the types do not matter."""
    events, results, _, calls = await results_of(types, answer, react("Done."))
    assert (events, results, calls) == ([("Delete", {"name": "bob"})], ["deleted bob"], 2)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (react({"name": "bob"}), "does not name its type"),
        (react({"name": "bob", "new_name": "b"}), "does not name its type"),
        (react({"messageType": "Remove", "name": "bob"}), "Unknown messageType: Remove"),
        (react({"messageType": "delete", "name": "bob"}), "Unknown messageType: delete"),
        (react({"messageType": "Delete", "name": "bob"}, messageType="Create"), "names two types"),
        (
            react({"messageType": "Delete", "content": {"messageType": "Create", "name": "bob"}}),
            "names two types",
        ),
        (react({"messageType": 5, "name": "bob"}), "must be the name of a type"),
        (react({"messageType": "Delete", "nickname": "bob"}), "'name' is missing"),
    ],
)
async def test_react_retries_an_ambiguous_type(answer, reason):
    """No event is emitted and no tool runs; the model reads the reason."""
    llm_answers = (answer, react("Done."))
    events, results, reply, calls = await results_of((CREATE, DELETE, WIDE), *llm_answers)
    assert (events, results, str(reply), calls) == ([], [], "Done.", 2)
    llm = ScriptedLLM([*llm_answers])
    async with ReActAgent(
        "a", llm=llm, types=[CREATE, DELETE, WIDE], tools=[create_user, delete_user, rename_user]
    ) as a:
        await a.run("delete bob")
    assert any(reason in part.text for message in llm.chats[1].messages for part in message.parts)


async def test_data_without_a_name_is_accepted_if_unambiguous():
    """The only type needs no name, and a type without a tool needs none if no other type can be meant."""
    events, results, _, calls = await results_of((DELETE,), react({"name": "bob"}), react("Done."))
    assert (events, results, calls) == ([("Delete", {"name": "bob"})], ["deleted bob"], 2)
    weather = {"name": "weather", "schema": {"city": "<city>"}}
    oslo = react({"city": "Oslo"}, response_description="Oslo")
    _, results, reply, calls = await results_of((weather, DELETE), oslo)
    assert (reply.message_type, reply.data, results, calls) == ("weather", {"city": "Oslo"}, [], 1)
    _, results, _, calls = await results_of((weather, DELETE), react({"name": "bob"}), react("Done."))
    assert (results, calls) == ([], 2)  # a tool beside other types runs by its name only
    anything = {"name": "note"}
    _, results, _, calls = await results_of((anything, DELETE), react({"name": "bob"}), react("Done."))
    assert (results, calls) == ([], 2)


@pytest.mark.parametrize("content", [{"message": "Hello."}, "Hello.", {"text": "Hello."}])
async def test_react_accepts_the_documented_format(content):
    """`response_purpose` and `response_content` are enough, with and without types."""
    for types in ((), (CREATE, DELETE)):
        _, results, reply, calls = await results_of(types, react(content))
        assert (str(reply), results, calls) == ("Hello.", [], 1)


async def test_react_accepts_data_without_a_description():
    """An agent without types shows the data as JSON; a tool call with a wrong purpose is requested again."""
    _, _, reply, calls = await results_of((), react({"sum": 3}))
    assert (str(reply), reply.data, calls) == ('{"sum": 3}', {"sum": 3}, 1)
    _, _, reply, calls = await results_of((), react({"name": "add", "parameters": {}}), react("ok"))
    assert (str(reply), calls) == ("ok", 2)


async def test_text_never_selects_an_instruction():
    """A type that accepts text runs its tool only if the answer names the type."""
    note = {"name": "note", "schema": {"type": "string"}, "tool": "create_user"}
    _, results, reply, calls = await results_of((note,), react("Hello."))
    assert (results, str(reply), calls) == ([], "Hello.", 1)


async def test_simple_rejects_content_that_names_another_type():
    """The names outside and inside have to agree. A repeated name is not data."""
    wrong = json.dumps({"messageType": "Create", "content": {"messageType": "Delete", "name": "bob"}})
    plain = json.dumps({"messageType": "DIRECT_RESPONSE", "content": "Done."})
    events, results, _, calls = await results_of((CREATE, DELETE), wrong, plain, kind=SimpleAgent)
    assert (events, results, calls) == ([], [], 2)
    again = json.dumps({"messageType": "Delete", "content": {"messageType": "Delete", "name": "bob"}})
    events, results, _, _ = await results_of((CREATE, DELETE), again, plain, kind=SimpleAgent)
    assert (events, results) == ([("Delete", {"name": "bob"})], ["deleted bob"])


@pytest.mark.parametrize(
    ("content", "beside", "runs"),
    [
        ({"name": "bob"}, {"name": "alice"}, []),
        ({"name": "bob"}, {"name": "bob"}, ["deleted bob"]),
        ({"name": "bob"}, {"confidence": 0.9}, ["deleted bob"]),
    ],
)
async def test_member_with_two_values_is_retried(content, beside, runs):
    """A value next to the content that differs from the one inside may be the intended one."""
    answer = json.dumps({"messageType": "Delete", "content": content, **beside})
    plain = json.dumps({"messageType": "DIRECT_RESPONSE", "content": "Done."})
    _, results, _, _ = await results_of((CREATE, DELETE), answer, plain, kind=SimpleAgent)
    assert results == runs


async def test_router_rejects_an_intent_with_another_type():
    """An answer that names an action and another type is requested again."""
    both = {
        "top_level_intent": "ACTION",
        "second_level_intent": "Create",
        "messageType": "Delete",
        "name": "bob",
    }
    plain = json.dumps({"top_level_intent": "CONVERSATION", "response": "Done."})
    events, results, _, calls = await results_of((CREATE, DELETE), json.dumps(both), plain, kind=RouterAgent)
    assert (events, results, calls) == ([], [], 2)


# --- what is refused when an agent is built ------------------------------------------------------


@pytest.mark.parametrize("other", ["Create", "create", " CREATE "])
def test_two_types_with_one_name_are_refused(other):
    """The error names both types and a remedy."""
    twin = {"name": other, "schema": {"id": "<id>"}}
    with pytest.raises(ConfigurationError, match=r"'Create'.*rename one of them"):
        SimpleAgent("a", llm=ScriptedLLM([]), types=[CREATE, twin], tools=[create_user])
    with pytest.raises(ConfigurationError, match=r"'Create'.*rename one of them"):
        ReActAgent("a", llm=ScriptedLLM([]), instructions=[CREATE], types=[twin], tools=[create_user])
    with pytest.raises(ConfigurationError, match=r"'Create'.*rename one of them"):
        AgentBuilder("a").instructions(CREATE).types(twin).tools(create_user).llm(ScriptedLLM([])).build()
    with pytest.raises(ConfigurationError, match=r"'Create'.*rename one of them"):
        SchemaBuilder([CREATE, twin]).build()


def test_duplicate_type_counts_once():
    """Instructions and the types that `SchemaBuilder` makes of them may be passed together."""
    types = SchemaBuilder([CREATE]).build()
    agent = SimpleAgent("a", llm=ScriptedLLM([]), instructions=[CREATE], types=types, tools=[create_user])
    assert agent.profile.types == types


@pytest.mark.parametrize("kind", [SimpleAgent, ReActAgent])
@pytest.mark.parametrize("name", ["DIRECT_RESPONSE", "tool_invocation"])
def test_tool_with_a_reserved_protocol_name_is_rejected(kind, name):
    """Otherwise every plain answer would run the tool, or no answer would."""
    with pytest.raises(ConfigurationError, match="rename the type"):
        kind("a", llm=ScriptedLLM([]), types=[CREATE | {"name": name}], tools=[create_user])
    kind("a", llm=ScriptedLLM([]), types=[{"name": name}])


@pytest.mark.parametrize(
    "schema",
    [
        {"messageType": "Delete", "name": "<n>"},
        {"type": "object", "properties": {"messageType": {"const": "x"}}},
    ],
)
def test_a_schema_with_the_name_of_another_type_is_refused(schema):
    """Prompt and classifier would use different names."""
    with pytest.raises(ConfigurationError, match="'Create' must not require the messageType"):
        SimpleAgent(
            "a",
            llm=ScriptedLLM([]),
            types=[CREATE | {"schema": schema}, DELETE],
            tools=[create_user, delete_user],
        )


def test_check_reports_ambiguous_names_in_a_folder(tmp_path, capsys):
    """`actgent check` rejects names that differ only in case, and a tool behind a name of the protocol."""
    folder = tmp_path / "clerk"
    (folder / "instructions").mkdir(parents=True)
    (folder / "brain.md").write_text("---\nprotocol: react\n---\n")
    (folder / "tools.py").write_text(
        'from actgent import tool\n\n@tool\ndef make(name: str) -> str:\n    """Make."""\n    return name\n'
    )
    (folder / "instructions" / "a.md").write_text("---\ninstructionName: Create\n---\nMake.\n")
    (folder / "instructions" / "b.md").write_text("---\ninstructionName: create\n---\nMake.\n")
    with pytest.raises(SystemExit, match="2"):
        main(["check", str(folder)])
    assert "two instructions are named 'create'" in capsys.readouterr().err
    (folder / "instructions" / "b.md").write_text(
        "---\ninstructionName: TOOL_INVOCATION\ntool: make\n---\nMake.\n"
    )
    with pytest.raises(SystemExit, match="2"):
        main(["check", str(folder)])
    assert "rename the type" in capsys.readouterr().err


# --- prompts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SimpleAgent, ReActAgent])
def test_the_prompt_shows_the_whole_answer_of_each_type(kind):
    """The form names the type, also where the schema of the type describes the whole answer."""
    whole = {"name": "greeting", "schema": {"messageType": "greeting", "content": "string"}}
    schema = {"type": "object", "properties": {"messageType": {"type": "string"}, "text": {"type": "string"}}}
    agent = kind(
        "a",
        llm=ScriptedLLM([]),
        instructions=[Instruction("Create", "Make a user.", '{"name": "<name>"}', "create_user")],
        types=[whole, ClassificationType("Note", schema=schema)],
        tools=[create_user],
    )
    assert (
        '- Create: Make a user.\n{"messageType": "Create", "content": {"name": "<name>"}}'
        in agent.system_prompt
    )
    assert '- greeting\n{"messageType": "greeting", "content": "string"}' in agent.system_prompt
    assert '"messageType": {"const": "Note"}' in agent.system_prompt


async def test_a_schema_with_message_type_is_the_whole_answer():
    """The members of the answer, not its content, have the form of the schema."""
    whole = {
        "name": "greeting",
        "schema": {"messageType": "greeting", "content": "string", "mood": "<mood>"},
        "tool": "greet",
    }
    seen = []

    @tool(thread=False)
    def greet(content: str, mood: str) -> str:
        """Greet."""
        seen.append((content, mood))
        return "greeted"

    said = {"messageType": "greeting", "content": "Hi", "mood": "good"}
    plain = '{"messageType": "DIRECT_RESPONSE", "content": "Done."}'
    async with SimpleAgent(
        "a", llm=ScriptedLLM([json.dumps(said), plain]), types=[whole], tools=[greet]
    ) as agent:
        await agent.run("Hi")
    async with ReActAgent(
        "a", llm=ScriptedLLM([react(said), react("Done.")]), types=[whole], tools=[greet]
    ) as agent:
        await agent.run("Hi")
    assert seen == [("Hi", "good")] * 2


# --- dicts and JSON text -------------------------------------------------------------------------


def test_instructions_and_types_may_be_dicts_or_json_text():
    """The forms of the document are accepted by agents and by both builders."""
    as_text = {"instructionName": "Create", "schemaTemplate": '{"name": "<name>"}', "tool": "create_user"}
    expected = (ClassificationType("Create", "", {"name": "<name>"}, "create_user"),)
    llm = ScriptedLLM([])
    assert SchemaBuilder([as_text]).build() == expected
    assert SchemaBuilder().add(as_text).build() == expected
    for agent in (
        SimpleAgent("a", llm=llm, instructions=[as_text], tools=[create_user]),
        SimpleAgent("a", llm=llm, types=[as_text], tools=[create_user]),
        RouterAgent("a", llm=llm, types=[as_text], tools=[create_user]),
        AgentBuilder("a").instructions(as_text).tools(create_user).llm(llm).build(),
        AgentBuilder("a").types(as_text).tools(create_user).llm(llm).build(),
    ):
        assert agent.profile.types == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"description": "x"}, "has no name"),
        ({"name": "x", "shema": {}}, "did you mean 'schema'"),
        ({"name": "x", "schema": {}, "schemaTemplate": {}}, "twice"),
        ({"name": "x", "schema": "{"}, "is not JSON"),
        ({"name": "x", "schema": "[1]"}, "must be an object"),
        ({"name": "x", "schema": "creation.json"}, "is not JSON"),
        ({"name": 5}, "has no name"),
    ],
)
def test_invalid_type_dict_is_reported(value, reason):
    """The error names the invalid value and the reason."""
    for arguments in ({"instructions": [value]}, {"types": [value]}):
        with pytest.raises(ConfigurationError, match=reason):
            SimpleAgent("a", llm=ScriptedLLM([]), **arguments)
