"""Agents from folders: the definition that is read, and the reported problems."""

import itertools
import json
import os
from pathlib import Path

import attrs
import pytest

from actgent import AgentBuilder, Instruction, InvalidFile, InvalidFolder, Limits
from actgent.cli.main import main
from actgent.definitions.agent_folder import read_folder, tool_lines
from actgent.limits_and_schedules.limits import FORMS

SECRET = "sk-canary-0123456789"

BRAIN = f"""\
---
name: smith
role: a maker of agents
goal: make agents
capabilities: [talk, make]
instructions:
  creation: instructions/creation.md
  greeting: instructions/greeting.md
protocol: react
strategy: keyword
llm:
  model: openai:gpt-5.2
  api_key: {SECRET}
  temperature: 0
tools: [generate]
limits: {{model_calls: 7, tool_timeout: 2.5}}
memory: {{max_tokens: 1000}}
---
Never hurry.
"""
CREATION = """\
---
instructionName: Creation
schemaTemplate: creation.json
tool: generate
---
Make an agent.
"""
FILES = {
    "brain.md": BRAIN,
    "instructions/creation.md": CREATION,
    "instructions/creation.json": '{\n  "name": "<the name>",\n  "caps": ["<one>"]\n}\n',
    "instructions/greeting.md": "---\nschemaTemplate: {type: object, properties: {who: {type: string}}}\n---\nHello.\n",
    "tools.py": "from actgent import tool\n\n@tool\ndef generate(name: str, caps: list[str]) -> str:\n    return name\n",
    "AGENTS.md": "Use short words.\n",
    "skills/pdf/SKILL.md": "---\nname: pdf\ndescription: Read PDF files.\nlicense: MIT\n---\nOpen it first.\n",
}


@pytest.fixture
def write(tmp_path):
    """Return a function that writes the folder of FILES with the given changes. None leaves a file out."""

    def build(changes=None):
        for path, content in {**FILES, **(changes or {})}.items():
            if content is None:
                continue
            file = tmp_path / "smith" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / "smith"

    return build


def problems(folder, **options):
    """Return (file, line, key) of each reported problem. No error contains the secret."""
    with pytest.raises(InvalidFolder) as caught:
        read_folder(folder, **options)
    assert SECRET not in str(caught.value) + repr(caught.value)
    return [(str(p.file).removeprefix(f"{folder}/"), p.line, p.key) for p in caught.value.problems]


def test_a_folder_defines_role_and_goal(write):
    """The definition has the content of all files, and its repr hides the API key."""
    read = read_folder(write())
    assert (read.name, read.role, read.capabilities) == ("smith", "a maker of agents", "talk, make")
    assert [(i.name, i.description, i.tool) for i in read.instructions] == [
        ("Creation", "Make an agent.", "generate"),
        ("greeting", "Hello.", None),
    ]
    assert read.instructions[0].schema == {"name": "<the name>", "caps": ["<one>"]}
    assert read.limits == Limits(model_calls=7, tool_timeout=2.5)
    assert read.llm["temperature"] == 0
    assert read.body.startswith("Never hurry.\n\nUse short words.\n\nSkills: ")
    assert "- pdf: Read PDF files." in read.body
    assert "Open it first." not in read.body
    assert SECRET not in repr(read)
    assert read_folder(write() / "brain.md") == read


def test_a_missing_name_is_the_name_of_the_folder(write, monkeypatch):
    """Without a name in brain.md the folder name is used, for any form of the path."""
    folder = write({"brain.md": "---\nrole: x\n---\n"})
    monkeypatch.chdir(folder)
    assert [read_folder(path).name for path in (folder, ".", "brain.md", folder / "brain.md")] == [
        "smith"
    ] * 4


def test_the_instruction_name_in_the_file_counts(write):
    """The name of an instruction is its `instructionName`, the key in brain.md, its `name`, or its file name, in this order."""
    paths = "instructions/creation.md", "instructions/greeting.md", "instructions/bye.md"
    files = {"instructions/bye.md": "---\nname: farewell\n---\nBye."}
    brain = "---\ninstructions: {{{}}}\n---\n".format(
        ", ".join(f"k{n}: {path}" for n, path in enumerate(paths))
    )
    read = read_folder(write(files | {"brain.md": brain}))
    assert [each.name for each in read.instructions] == ["Creation", "k1", "k2"]
    read = read_folder(write(files | {"brain.md": f"---\ninstructions: [{', '.join(paths)}]\n---\n"}))
    assert [each.name for each in read.instructions] == ["Creation", "greeting", "farewell"]


def test_instructions_are_found_where_none_are_listed(write):
    """Without `instructions` in brain.md, all files of the instructions folder are read."""
    brain = "---\nname: x\n---\n"
    second = "---\nname: farewell\n---\nBye."
    read = read_folder(write({"brain.md": brain, "instructions/z.md": second}))
    assert [i.name for i in read.instructions] == ["Creation", "greeting", "farewell"]
    listed = "---\nname: x\ninstructions: [instructions/z.md]\n---\n"
    assert [i.name for i in read_folder(write({"brain.md": listed})).instructions] == ["farewell"]


def test_one_error_lists_all_problems(write):
    """One error lists all problems of all files, each with file, line and key."""
    folder = write(
        {
            "brain.md": BRAIN.replace("goal:", "gaol:").replace("temperature: 0", "temperature: hot"),
            "instructions/creation.md": CREATION.replace("tool: generate", "tool: forge"),
            "instructions/greeting.md": "---\nschemaTemplate: {type: object, properties: {a: {type: strng}}}\n---\n",
            "skills/pdf/SKILL.md": "---\nname: PDF\n---\n",
        }
    )
    assert problems(folder) == [
        ("brain.md", 4, "gaol"),
        ("brain.md", 14, "llm.temperature"),
        ("instructions/creation.md", 4, "tool"),
        ("instructions/greeting.md", 2, "schemaTemplate"),
        ("skills/pdf/SKILL.md", 2, "name"),
        ("skills/pdf/SKILL.md", 2, "description"),
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"brain.md": None}, ("brain.md", 1, "")),
        ({"brain.md": "---\nname: ''\n---\n"}, ("brain.md", 2, "name")),
        ({"brain.md": BRAIN.replace("react", "reactt")}, ("brain.md", 9, "protocol")),
        ({"brain.md": BRAIN.replace("react", "simple")}, ("brain.md", 10, "strategy")),
        ({"brain.md": BRAIN.replace("[generate]", "[generate, other]")}, ("brain.md", 15, "tools.1")),
        ({"brain.md": BRAIN.replace("[generate]", "[generate, generate]")}, ("brain.md", 15, "tools.1")),
        (
            {"brain.md": BRAIN.replace("model_calls: 7", "model_calls: 0")},
            ("brain.md", 16, "limits.model_calls"),
        ),
        ({"brain.md": BRAIN.replace("model_calls: 7", "calls: 7")}, ("brain.md", 16, "limits.calls")),
        ({"brain.md": BRAIN.replace("greeting:", "Creation:")}, ("brain.md", 8, "instructions.Creation")),
        (
            {"brain.md": BRAIN.replace("instructions/greeting.md", "instructions/no.md")},
            ("brain.md", 8, "instructions.greeting"),
        ),
        ({"instructions/creation.json": None}, ("instructions/creation.md", 3, "schemaTemplate")),
        ({"instructions/creation.json": '{\n"a": 1,\n"a": 2}'}, ("instructions/creation.json", 3, "a")),
        ({"instructions/creation.json": '{\n"a": 1,}'}, ("instructions/creation.json", 2, "")),
        ({"instructions/creation.json": "[1]"}, ("instructions/creation.json", 1, "")),
        ({"instructions/creation.json": '{"a": NaN}'}, ("instructions/creation.json", 1, "")),
        ({"instructions/creation.json": '{"a":' * 5000}, ("instructions/creation.json", 1, "")),
        ({"tools.py": "def x(:\n"}, ("tools.py", 1, "")),
        ({"AGENTS.md": b"\xff"}, ("AGENTS.md", 1, "")),
    ],
)
def test_each_problem_has_file_line_and_key(write, changes, expected):
    """One mistake gives one problem with its file, line and key."""
    assert problems(write(changes)) == [expected]


@pytest.mark.parametrize(
    ("path", "old"),
    [
        ("brain.md", "instructions/greeting.md"),
        ("brain.md", "generate"),
        ("brain.md", "temperature"),
        ("brain.md", "react"),
        ("instructions/creation.md", "creation.json"),
        ("instructions/creation.md", "generate"),
        ("instructions/greeting.md", "string"),
    ],
)
def test_misplaced_secret_is_not_quoted(write, path, old):
    """An API key in place of another value is not quoted in an error."""
    assert problems(write({path: FILES[path].replace(old, SECRET), "tools.py": FILES["tools.py"] + "\n"}))


def test_file_names_with_control_characters_raise_no_exception(write):
    """Skill folders with control characters in their names are skipped. An instruction file with one is a problem."""
    folder = write({"brain.md": "---\nname: x\n---\n"})
    for name in (b"a\nb", b"\xff\xfe", b"a\\b"):
        odd = Path(os.fsdecode(os.fsencode(folder) + b"/skills/" + name))
        odd.mkdir()
        (odd / "SKILL.md").write_text("x")
    assert [skill.name for skill in read_folder(folder).skills] == ["pdf"]
    (folder / "instructions" / "a\nb.md").write_text("x")
    assert len(problems(folder)) == 1


@pytest.mark.parametrize(
    "path", ["../x.md", "/etc/passwd", "~/x.md", "a\\\\b.md", "a/../../b.md", "link.md", "fifo"]
)
@pytest.mark.parametrize("where", ["brain.md", "instructions/creation.md"])
def test_paths_stay_in_the_folder(write, path, where):
    """Paths out of the folder are reported for brain.md and for an instruction, and no other file is read."""
    folder = write()
    for place in (folder, folder / "instructions"):
        (place / "link.md").symlink_to("/etc/hosts")
        (place / "fifo").unlink(missing_ok=True)
    old = "instructions/creation.md" if where == "brain.md" else "creation.json"
    file = folder / where
    file.write_text(file.read_text().replace(old, f'"{path}"'))
    assert [place for place, _, _ in problems(folder)] == [where]


def test_recorded_paths_are_refused(write, recorded_rows):
    """The `path` cases of ../shared/data, used as the path of an instruction, are problems of brain.md."""
    for row in recorded_rows("security_cases.jsonl"):
        if row["area"] == "path" and row["payload"]:
            brain = BRAIN.replace("instructions/greeting.md", json.dumps(row["payload"]))
            assert {file for file, _, _ in problems(write({"brain.md": brain}))} == {"brain.md"}


def test_tools_are_found_without_running_them(write):
    """Tool names are read from the source text without importing it."""
    code = """
import actgent
raise SystemExit
@actgent.tool
def a(): ...
@tool(name="b-2", timeout=1)
async def b(): ...
c = FunctionTool("c", "text", print)
class D(Tool):
    name = "d"
def helper(): ...
"""
    assert tool_lines(code).keys() == {"a", "b-2", "c", "d"}
    (write() / "tools.py").write_text(code + "\n@tool\ndef generate(): ...\n")
    assert read_folder(write({"tools.py": code + "\n@tool\ndef generate(): ...\n"})).name == "smith"


def test_instruction_may_map_to_a_tool_of_the_program(write):
    """An instruction may map to a tool that the program passes with `tools=`."""
    folder = write({"tools.py": None})
    assert ("instructions/creation.md", 4, "tool") in problems(folder)
    assert read_folder(folder, tools=["generate"]).instructions[0].tool == "generate"


def test_the_form_of_limits_is_that_of_the_class():
    """Each field of `Limits` can be set in a file under its own name."""
    assert set(FORMS) == set(attrs.fields_dict(Limits))


def test_hundred_instructions_are_read_completely(write):
    """A folder of 100 instructions with schemas is read completely. The benchmark FOLDER measures the time."""
    form = "---\nschemaTemplate:\n  type: object\n  properties:\n    a{0}: {{type: string}}\n  required: [a{0}]\n---\nText.\n"
    many = {f"instructions/i{n:03}.md": form.format(n) for n in range(100)}
    folder = write({"brain.md": "---\nname: x\n---\n", **many})
    assert len(read_folder(folder).instructions) == 102


# --- mutations -----------------------------------------------------------------------------


def mutations():
    """Yield (path, content) of invalid forms of the brain, an instruction and its schema."""
    front = BRAIN.index("---\nNever") + 3
    yield from (("brain.md", BRAIN[:end]) for end in range(0, front, 6))
    yield from (
        ("instructions/creation.md", CREATION[:end]) for end in range(0, CREATION.rindex("---") + 3, 5)
    )
    schema = FILES["instructions/creation.json"]
    yield from (("instructions/creation.json", schema[:end]) for end in range(0, schema.rindex("}"), 5))
    for path in ("brain.md", "instructions/creation.md", "instructions/creation.json"):
        text = FILES[path]
        for encoding in ("utf-16", "utf-32", "utf-8-sig", "cp037"):
            yield path, text.encode(encoding)
        for position in range(0, len(text), 40):
            yield path, text[:position].encode() + b"\x00" + text[position:].encode()
            yield path, text[:position].encode() + b"\xe9\xff" + text[position:].encode()
    keys = [line for line in BRAIN.splitlines() if line and line[0].isalpha() and ":" in line]
    for line in keys:
        key = line.partition(":")[0]
        yield (
            "brain.md",
            BRAIN.replace(f"\n{line}\n", f"\n{line}\n{key}: again\n", 1).replace("---\nNever", "---\nx"),
        )
        yield "brain.md", BRAIN.replace(f"\n{key}:", f"\n{key}x:", 1)
        for wrong in ("3.5", "[[1]]", "{{a: {b: 1}}}", "!!python/name:os.system x", "&a [*a]"):
            yield "brain.md", BRAIN.replace("---\nname: smith", f"---\n{key}: {wrong}\nname: smith", 1)


def test_mutated_configurations_end_with_their_place(write, capsys):
    """`check` of more than 200 invalid folders exits with 2 and names file and line, without the secret.

    Outside of `make soak` a tenth of the folders is checked.
    """
    count, step = 0, 1 if os.environ.get("ACTGENT_SOAK") else 10
    for path, content in itertools.islice(mutations(), 0, None, step):
        folder = write({path: content})
        with pytest.raises(SystemExit) as ended:
            main(["check", str(folder)])
        printed = capsys.readouterr()
        text = " ".join((printed.out + printed.err).split())
        assert ended.value.code == 2, (path, content)
        assert f"{folder}/" in text
        assert any(f"{file}:" in text for file in FILES)
        assert "Traceback" not in text
        assert SECRET not in text
        count += 1
    assert count >= 200 // step


def test_a_good_folder_is_fine(write, capsys):
    """`check` of a valid folder exits with 0."""
    with pytest.raises(SystemExit) as ended:
        main(["check", str(write())])
    assert ended.value.code == 0
    assert "agent 'smith' is fine" in capsys.readouterr().out


# --- built agents ----------------------------------------------------------------------------


def test_failing_tools_file_is_reported_with_its_line(write):
    """A failure of tools.py at import is a problem with its line, without the text of the exception."""
    with pytest.raises(InvalidFolder) as caught:
        AgentBuilder.from_folder(write({"tools.py": FILES["tools.py"] + f"\nraise ValueError('{SECRET}')\n"}))
    problem = caught.value.problems[0]
    assert (type(problem), problem.line, SECRET in str(problem)) == (InvalidFile, 7, False)


def test_instruction_from_a_file_equals_one_from_code(write):
    """An instruction from a file equals the same instruction from code."""
    form = {"type": "object", "properties": {"who": {"type": "string"}}}
    assert read_folder(write()).instructions[1] == Instruction("greeting", "Hello.", form)
