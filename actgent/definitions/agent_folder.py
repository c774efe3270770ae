"""Reading and validation of an agent folder, which defines an agent by text files.

    tutor/
      brain.md             profile and settings (front matter; `name` defaults to the name of the folder), and further text of
                           the system prompt (the text below)
      instructions/*.md    types of answers: `schemaTemplate`, `tool`, and the description as text
      tools.py, tools/*.py tools: functions with `@tool`
      openapi/*.yaml       OpenAPI documents whose operations are tools
      mcp_config.json      MCP servers
      AGENTS.md, skills/*/SKILL.md

Reading does not run the tools' code or start servers. All errors are reported together, with file, line and key.
"""

import ast
import difflib
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import attrs
import jsonschema_rs

from actgent.errors import ConfigurationError, InvalidFile, InvalidFolder
from actgent.information_flow_labels import Check, Policy, Untrusted, Violation
from actgent.limits_and_schedules.limits import FORMS, Limits
from actgent.llm import model_settings
from actgent.messages import OnBusy
from actgent.protocols import PROTOCOLS, make_protocol
from actgent.protocols.protocol_interface import Instruction, Profile, types_from

from .front_matter import Document, format_path, split_front_matter
from .skills import LoadSkill, Skill, read_notes, read_skills, skills_prompt
from .strict_json_parsing import json_object, short_reason
from .toolset_files import read_documents, read_servers
from .untrusted_folder_reading import Folder, Unreachable, shown_text

BRAIN = "brain.md"
TOOLS = "tools.py"
MORE_TOOLS = "tools"
_WITHOUT_STRATEGY = tuple(name for name in PROTOCOLS if name != "react")
STRATEGIES = ("keyword", "auto", "preference")
MAX_INSTRUCTIONS = 500
_MAX_NAME_CHARS = 64

_TEXT = {"type": "string"}
_NAME = {"type": "string", "pattern": r"\S", "maxLength": _MAX_NAME_CHARS}
_COUNT = {"type": "integer", "minimum": 1}
_ABOVE_ZERO = {"type": "number", "exclusiveMinimum": 0}
BRAIN_SCHEMA: Mapping[str, Any] = {
    "properties": {
        "name": _NAME,
        "role": _TEXT,
        "goal": _TEXT,
        "capabilities": {"type": ["string", "array"], "items": _TEXT},
        "instructions": {
            "type": ["object", "array"],
            "additionalProperties": _TEXT,
            "items": _TEXT,
            "maxProperties": MAX_INSTRUCTIONS,
            "maxItems": MAX_INSTRUCTIONS,
        },
        "protocol": {"enum": list(PROTOCOLS)},
        "strategy": {"enum": list(STRATEGIES)},
        "llm": model_settings.SCHEMA,
        "tools": {"type": "array", "items": _NAME},
        "handler_timeout": _ABOVE_ZERO,
        "on_busy": {"enum": list(get_args(OnBusy))},
        "limits": {"type": "object", "properties": FORMS, "additionalProperties": False},
        "memory": {"type": "object", "properties": {"max_tokens": _COUNT}, "additionalProperties": False},
        "policy": {
            "type": "object",
            "properties": {
                "untrusted": {"enum": list(get_args(Untrusted))},
                "check": {"enum": list(get_args(Check))},
                "violation": {"enum": list(get_args(Violation))},
                "bits": {"type": "integer", "minimum": 0},
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
INSTRUCTION_SCHEMA: Mapping[str, Any] = {
    "properties": {
        "name": _NAME,
        "instructionName": _NAME,
        "description": _TEXT,
        "schemaTemplate": {"type": ["string", "object"]},
        "tool": _NAME,
    },
    "additionalProperties": False,
}
# The mask keeps values, which may be secret, out of the library's error texts.
_BRAIN = jsonschema_rs.validator_for(dict(BRAIN_SCHEMA), mask="it")
_INSTRUCTION = jsonschema_rs.validator_for(dict(INSTRUCTION_SCHEMA), mask="it")
_KINDS = {"string": "text", "array": "a list", "object": "an object", "integer": "a whole number"}


@attrs.frozen(kw_only=True)
class AgentFolder:
    """The definition of an agent in a folder, as `read_folder` reads it."""

    path: Path
    """Path of the folder."""
    name: str
    """Name of the agent."""
    role: str = ""
    """Role of the agent; empty if brain.md has none."""
    goal: str = ""
    """Goal of the agent; empty if brain.md has none."""
    capabilities: str = ""
    """Capabilities of the agent; empty if brain.md has none."""
    body: str = attrs.field(default="", repr=False)
    """Further text of the system prompt: the text of brain.md, AGENTS.md, and the list of skills."""
    instructions: tuple[Instruction, ...] = ()
    """Types of answers, in the order of brain.md."""
    protocol: str | None = None
    """Name of the protocol; None is `simple` for an agent with instructions, and `bare` for one without."""
    strategy: str | None = None
    """Name of the strategy of the `react` protocol; None is the default strategy."""
    llm: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """Model settings of the folder; may contain an API key."""
    handler_timeout: float = 30.0
    """Timeout of async handlers and hooks in seconds."""
    on_busy: OnBusy = "queue"
    """Rule for messages that arrive during a turn: queue, collect, interrupt or reject."""
    limits: Limits = attrs.field(factory=Limits)
    """Limits of one turn of the agent."""
    max_tokens: int | None = None
    """Maximum tokens of the conversation in a request; None is the default of the memory."""
    policy: Policy | None = None
    """Checks of tool calls that depend on untrusted text; None checks nothing."""
    tool_names: tuple[str, ...] | None = None
    """Names of the tools in `code` that the agent has; None: all tools in `code`."""
    code: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """Source code of `tools.py` and `tools/*.py`, by path."""
    documents: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """OpenAPI documents in `openapi/`, by path."""
    servers: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """Configuration of each server in `mcp_config.json`; may contain secrets."""
    skills: tuple[Skill, ...] = ()
    """Skills in `skills/`, which the model can load."""


def read_folder(path: str | os.PathLike[str], *, tools: Iterable[str] = ()) -> AgentFolder:
    """Read and validate an agent's folder.

    Args:
        path: The folder, or its brain.md.
        tools: Names of tools that a program will add to those of the folder.

    Raises:
        InvalidFolder: The folder is invalid; the text has a line for each error.
    """
    folder_path = Path(path)
    if folder_path.name == BRAIN:
        folder_path = folder_path.parent
    problems: list[InvalidFile] = []
    try:
        with Folder.open(folder_path) as folder:
            read = _Reading(folder, problems, frozenset(tools)).agent()
    except InvalidFile as error:
        raise InvalidFolder([*problems, error]) from None
    if problems or read is None:
        raise InvalidFolder(sorted(problems, key=lambda problem: (problem.file, problem.line)))
    return read


@attrs.define
class _Reading:
    """Reads one agent folder. It continues after errors, and collects all errors in `problems`."""

    folder: Folder
    problems: list[InvalidFile]
    program_tools: frozenset[str]

    def agent(self) -> AgentFolder | None:
        brain = self._brain()
        code, defined = self._code()
        known = None if defined is None else self.program_tools | defined
        documents = read_documents(self.folder, self.problems)
        servers = read_servers(self.folder, self.problems, documents)
        skills = read_skills(self.folder, self.problems)
        notes = self._notes()
        if brain is None:
            self._instructions(Document({}, {}), None)
            return None
        named = self._tool_names(brain, known)
        usable = known if named is None or known is None else self.program_tools | (known & set(named))
        instructions = self._instructions(brain, usable)
        self._check_names(brain, instructions)
        if skills and known and LoadSkill.name in known:
            self._add(TOOLS, 1, f"the tool {LoadSkill.name!r} is reserved for skills: rename your tool")
        if self.problems:
            return None
        values = brain.values
        capabilities = values.get("capabilities", "")
        llm = values.get("llm", {})
        return AgentFolder(
            path=self.folder.path,
            name=self._agent_name(brain),
            role=values.get("role", ""),
            goal=values.get("goal", ""),
            capabilities=capabilities if isinstance(capabilities, str) else ", ".join(capabilities),
            body="\n\n".join(filter(None, (brain.body, notes, skills_prompt(skills)))),
            instructions=instructions,
            protocol=values.get("protocol"),
            strategy=values.get("strategy"),
            llm={"model": llm} if isinstance(llm, str) else llm,
            handler_timeout=values.get("handler_timeout", 30.0),
            on_busy=values.get("on_busy", "queue"),
            limits=Limits(**values.get("limits", {})),
            max_tokens=values.get("memory", {}).get("max_tokens"),
            policy=Policy(**values["policy"]) if "policy" in values else None,
            tool_names=named,
            code=code,
            documents=documents,
            servers=servers,
            skills=skills,
        )

    # --- brain.md ------------------------------------------------------------------------

    def _brain(self) -> Document | None:
        try:
            document = split_front_matter(self.folder.read(BRAIN), name=self.folder.name_of(BRAIN))
        except InvalidFile as error:
            self.problems.append(error)
            return None
        if self._check(BRAIN, document, _BRAIN, known=BRAIN_SCHEMA):
            self._check_values(document)
        values = document.values
        if "strategy" in values and values.get("protocol", "bare") in _WITHOUT_STRATEGY:
            self._add(
                BRAIN, document.line(("strategy",)), "only the react protocol has a strategy", "strategy"
            )
        self._check_model(document)
        return document

    def _check_values(self, brain: Document) -> None:
        """Check values of brain.md that the schema cannot check, so that their errors have a line number."""
        name = self._agent_name(brain)
        if not name.isprintable():
            self._add(BRAIN, brain.line(("name",)), "must be printable text on one line", "name")
        elif not 0 < len(name) <= _MAX_NAME_CHARS:
            self._add(BRAIN, brain.line(("name",)), f"must have 1 to {_MAX_NAME_CHARS} characters", "name")
        for key, value in brain.values.get("limits", {}).items():
            try:
                Limits(**{key: value})
            except ConfigurationError as error:
                reason = str(error).partition(" must be ")[2].rpartition(", not ")[0]
                self._add(BRAIN, brain.line(("limits", key)), f"must be {reason}", f"limits.{key}")
        policy = brain.values.get("policy", {})
        if policy.get("bits") and policy.get("untrusted") != "isolate":
            self._add(BRAIN, brain.line(("policy", "bits")), "it needs untrusted: isolate", "policy.bits")

    def _agent_name(self, brain: Document) -> str:
        """Return the name of the agent: `name` in brain.md, or else the name of the folder."""
        name: str = brain.values.get("name") or self.folder.path.resolve().name
        return name

    def _check_model(self, brain: Document) -> None:
        """Report a model provider in brain.md that is a misspelt name of a known provider. Other names may be custom providers."""
        llm = brain.values.get("llm")
        place = ("llm", "model") if isinstance(llm, dict) else ("llm",)
        model = llm.get("model") if isinstance(llm, dict) else llm
        if isinstance(model, str) and (reason := model_settings.unknown_provider(model, has_address=True)):
            self._add(BRAIN, brain.line(place), reason, format_path(place))
        elif isinstance(model, str) and not all(map(str.strip, model.split(":", 1))):
            self._add(
                BRAIN,
                brain.line(place),
                "expected PROVIDER:MODEL, but one of them is empty",
                format_path(place),
            )
        url = llm.get("base_url") if isinstance(llm, dict) else None
        if isinstance(url, str) and not _has_host(url):
            self._add(
                BRAIN,
                brain.line(("llm", "base_url")),
                "it is not an http(s) address with a host",
                "llm.base_url",
            )

    def _notes(self) -> str:
        try:
            return read_notes(self.folder)
        except InvalidFile as error:
            self.problems.append(error)
            return ""

    # --- instructions --------------------------------------------------------------------

    def _instructions(self, brain: Document, tools: frozenset[str] | None) -> tuple[Instruction, ...]:
        """Return all valid instructions of the folder, and report the invalid ones.

        `tools` are the tool names to which instructions may refer; None accepts any name.
        """
        read: dict[str, Instruction] = {}
        for key, path, place in self._instruction_paths(brain):
            instruction = self._instruction(key, path, place, brain, tools)
            if instruction is None:
                continue
            if instruction.name.casefold() in read:
                line = brain.line(place)
                self._add(
                    BRAIN,
                    line,
                    f"two instructions are named {shown_text(instruction.name)}",
                    format_path(place),
                )
            read[instruction.name.casefold()] = instruction
        return tuple(read.values())

    def _check_names(self, brain: Document, instructions: Sequence[Instruction]) -> None:
        """Report instructions whose names are reserved in the agent's protocol.

        The check is skipped if other problems were found before.
        """
        protocol = brain.values.get("protocol") or ("simple" if instructions else "bare")
        if self.problems or protocol not in PROTOCOLS:
            return
        try:
            make_protocol(protocol).check_fit(Profile(types=types_from(instructions)))
        except ConfigurationError as error:
            self._add(BRAIN, brain.line(("instructions",)), short_reason(error), "instructions")

    def _instruction_paths(self, brain: Document) -> Iterator[tuple[str | None, str, tuple[str | int, ...]]]:
        """Yield for each instruction its name in brain.md, the path of its file, and its position in brain.md."""
        listed = brain.values.get("instructions")
        if isinstance(listed, dict):
            pairs: Iterable[tuple[Any, Any]] = listed.items()
        elif isinstance(listed, list):
            pairs = enumerate(listed)
        else:
            yield from self._find_instructions()
            return
        for key, path in pairs:
            if isinstance(path, str):
                yield (key if isinstance(key, str) else None), path, ("instructions", key)

    def _find_instructions(self) -> Iterator[tuple[None, str, tuple[str | int, ...]]]:
        """Yield the files `instructions/*.md` in the form of `_instruction_paths`, for a brain.md that lists no instructions."""
        try:
            names = [name for name in self.folder.names("instructions") if name.endswith(".md")]
        except InvalidFile as error:
            self.problems.append(error)
            return
        if len(names) > MAX_INSTRUCTIONS:
            self._add("instructions", 1, f"more than {MAX_INSTRUCTIONS} instructions")
            return
        for name in names:
            yield None, f"instructions/{name}", ()

    def _instruction(
        self,
        key: str | None,
        path: str,
        place: tuple[str | int, ...],
        brain: Document,
        tools: frozenset[str] | None,
    ) -> Instruction | None:
        try:
            document = split_front_matter(self.folder.read(path), name=self.folder.name_of(path))
        except Unreachable as error:
            if place:
                self._add(BRAIN, brain.line(place), f"{shown_text(path)}: {error.reason}", format_path(place))
            else:  # found in the folder, not listed in brain.md
                self.problems.append(error)
            return None
        except InvalidFile as error:
            self.problems.append(error)
            return None
        if not self._check(path, document, _INSTRUCTION, known=INSTRUCTION_SCHEMA):
            return None
        return self._parse_instruction(path, document, self._name(key, path, document), tools)

    def _name(self, key: str | None, path: str, document: Document) -> str:
        """Return the name of an instruction: the first that is set of `instructionName` in its file, `key`, `name`, and the file name.

        `key` is the key of the instruction in brain.md.
        """
        values = document.values
        file_name = path.rpartition("/")[2].removesuffix(".md")
        return values.get("instructionName") or key or values.get("name") or file_name

    def _parse_instruction(
        self, path: str, document: Document, name: str, tools: frozenset[str] | None
    ) -> Instruction | None:
        count = len(self.problems)
        schema = self._schema(path, document)
        tool = document.values.get("tool")
        if tool is not None and tools is not None and tool not in tools:
            self._add(path, document.line(("tool",)), _unknown_tool(tool, tools), "tool")
        if not name.strip() or len(name) > _MAX_NAME_CHARS or not name.isprintable():
            self._add(path, 1, f"an instruction's name has 1 to {_MAX_NAME_CHARS} printable characters")
        described = (document.values.get("description", ""), document.body)
        instruction = Instruction(name, "\n".join(filter(None, described)), schema, tool)
        if len(self.problems) > count:
            return None
        try:
            types_from([instruction])
        except ConfigurationError as error:
            self._add(path, document.line(("schemaTemplate",)), short_reason(error), "schemaTemplate")
            return None
        return instruction

    def _schema(self, path: str, document: Document) -> Mapping[str, Any] | None:
        """Return the answer schema of an instruction, from its front matter or from the file that the front matter names.

        Return None if the instruction has no schema, or an invalid one, which is reported.
        """
        schema = document.values.get("schemaTemplate")
        if not isinstance(schema, str):
            return schema or None
        line = document.line(("schemaTemplate",))
        try:
            if schema.lstrip().startswith("{"):
                return json_object(schema, self.folder.name_of(path), line) or None
            target = (
                schema if schema.startswith(("/", "~")) else f"{path.rpartition('/')[0]}/{schema}".lstrip("/")
            )
            return json_object(self.folder.read(target), self.folder.name_of(target), 1) or None
        except Unreachable as error:
            self._add(path, line, f"{shown_text(schema)}: {error.reason}", "schemaTemplate")
        except InvalidFile as error:
            self.problems.append(error)
        return None

    # --- tools ---------------------------------------------------------------------------

    def _code(self) -> tuple[dict[str, str], frozenset[str] | None]:
        """Return the source of each tools file by path, and the names of the tools that they define.

        The names are None if a file is invalid.
        """
        code: dict[str, str] = {}
        defined: dict[str, str] = {}
        count = len(self.problems)
        for path in self._code_paths():
            try:
                code[path] = self.folder.read(path)
                found = tool_lines(code[path])
            except InvalidFile as error:
                self.problems.append(error)
            except SyntaxError as error:
                self._add(path, error.lineno or 1, f"syntax error: {error.msg}")
            except (ValueError, RecursionError, MemoryError):
                self._add(path, 1, "syntax error")
            else:
                for name, line in found.items():
                    if name in defined:
                        self._add(path, line, f"{defined[name]} also defines a tool {shown_text(name)}")
                    defined[name] = path
        return code, frozenset(defined) if len(self.problems) == count else None

    def _code_paths(self) -> list[str]:
        """Return the paths of the existing files tools.py and tools/*.py. Files whose names begin with _ are ignored."""
        try:
            names = [name for name in self.folder.names(MORE_TOOLS) if name.endswith(".py")]
        except InvalidFile as error:
            self.problems.append(error)
            names = []
        first = [TOOLS] if self.folder.has(TOOLS) else []
        return [*first, *(f"{MORE_TOOLS}/{name}" for name in names if not name.startswith("_"))]

    def _tool_names(self, brain: Document, known: frozenset[str] | None) -> tuple[str, ...] | None:
        named = brain.values.get("tools")
        if not isinstance(named, list):
            return None
        for index, name in enumerate(named):
            if not isinstance(name, str):
                continue
            place = ("tools", index)
            if known is not None and name not in known:
                self._add(BRAIN, brain.line(place), _unknown_tool(name, known), format_path(place))
            elif name in named[:index]:
                self._add(BRAIN, brain.line(place), "the tool is listed twice", format_path(place))
        return tuple(name for name in named if isinstance(name, str))

    # --- problems ------------------------------------------------------------------------

    def _add(self, path: str, line: int, reason: str, key: str = "") -> None:
        self.problems.append(InvalidFile(self.folder.name_of(path), line, reason, key))

    def _check(
        self, path: str, document: Document, validator: jsonschema_rs.Validator, *, known: Mapping[str, Any]
    ) -> bool:
        """Validate the values of a document in the file `path`, and report each error. Return True if the values are valid."""
        errors = list(validator.iter_errors(document.values))
        for error in errors:
            for place, reason in _describe_error(error, known):
                self._add(path, document.line(place), reason, format_path(place))
        return not errors


def _describe_error(
    error: jsonschema_rs.ValidationError, known: Mapping[str, Any]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the position and the text of each problem in a schema error. The texts never quote values, which may be secrets.

    `known` are the properties that the schema allows, for suggestions.
    """
    place = tuple(error.instance_path)
    kind: Any = error.kind  # each kind has other attributes
    match kind.name:
        case "additionalProperties":
            for key in kind.unexpected:
                yield (*place, key), f"unknown key{_suggestion(key, _keys_at(place, known))}"
        case "required":
            yield (*place, kind.property), "required key is missing"
        case "type":
            names = [_KINDS.get(str(name), f"a {name}") for name in kind.types]
            yield place, f"must be {' or '.join(names)}"
        case "enum":
            yield place, f"must be one of {', '.join(map(str, kind.options))}"
        case "pattern":
            yield place, "is empty or has an invalid format"
        case _:
            yield place, short_reason(error.message)


def _has_host(url: str) -> bool:
    try:
        parsed = urlsplit(url.strip())
    except ValueError:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.hostname)


def _keys_at(place: tuple[str | int, ...], known: Mapping[str, Any]) -> list[str]:
    for step in place:
        known = known.get("properties", {}).get(step, {})
    return list(known.get("properties", {}))


def _suggestion(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, 1)
    return f": did you mean {close[0]!r}?" if close else f" (known keys: {', '.join(known)})"


def _unknown_tool(name: str, known: Iterable[str]) -> str:
    there = ", ".join(sorted(known)) or "none"
    return f"unknown tool {shown_text(name)} (known tools: {there}): define it in {TOOLS}, or add it in the program"


# --- tool line numbers -----------------------------------------------------------------------

_FACTORIES = re.compile(r"(.*\.)?(tool|FunctionTool|HTTPTool)")
_GENERATOR = re.compile(r"(.*\.)?AgentGenerator")


def tool_lines(code: str) -> dict[str, int]:
    """Return the line number of each tool that Python code defines at its top level, by tool name, without running the code.

    Recognized are functions with `@tool`, `FunctionTool("name", ...)`, `HTTPTool("name", ...)` or `AgentGenerator(...)` that is
    assigned, and classes with a `name`.

    Raises:
        SyntaxError: The code is not valid Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about invalid escapes appear when the code runs
        tree = ast.parse(code)
    return {name: node.lineno for node in tree.body for name in _names_of(node)}


def _names_of(node: ast.stmt) -> Iterator[str]:
    """Yield the names of the tools that a statement at module level defines."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from _decorated_name(node)
        case ast.ClassDef():
            yield from _class_name(node)
        case ast.Assign(value=ast.Call() as call) | ast.AnnAssign(value=ast.Call() as call):
            yield from _called_name(call)


def _decorated_name(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        if _FACTORIES.fullmatch(ast.unparse(function)):
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            yield next(_literals(keyword.value for keyword in keywords if keyword.arg == "name"), node.name)


def _class_name(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="name")], value=value):
                yield from _literals([value])
            case ast.AnnAssign(target=ast.Name(id="name"), value=ast.expr() as value):
                yield from _literals([value])


def _called_name(call: ast.Call) -> Iterator[str]:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
    if _GENERATOR.fullmatch(ast.unparse(call.func)):
        yield next(_literals(named), "AgentGenerator")
    elif _FACTORIES.fullmatch(ast.unparse(call.func)):
        yield from _literals([*call.args[:1], *named])


def _literals(nodes: Iterable[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
