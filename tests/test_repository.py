"""Rules for the repository as a whole: imports, names, documentation and files."""

import ast
import graphlib
import importlib
import pickle
import re
import subprocess
import sys
import tomllib
import types
import typing
from pathlib import Path

import pytest

import actgent
from actgent.protocols import PROTOCOLS

ROOT = Path(__file__).parents[1]

FACE = [
    "open_gateway",
    "Gateway",
    "GatewayLimits",
    "AccessToken",
    "Webhook",
    "new_webhook_secret",
    "connect",
    "Client",
    "RemoteAgent",
    "RemoteLongTermMemory",
    "RemoteSession",
    "PortalClient",
    "AsyncPortalClient",
    "Agent",
    "SessionSummary",
    "SearchFilter",
    "SearchPage",
    "SearchHit",
    "Trends",
    "Trend",
    "Refuse",
    "Quotas",
    "Association",
    "Consolidation",
    "LongTermMemory",
    "MemoryFilter",
    "MemoryRecord",
    "MemoryMatch",
    "MemoryOwnerPage",
    "MemoryPage",
    "AgentCore",
    "BareAgent",
    "SimpleAgent",
    "ReActAgent",
    "RouterAgent",
    "AgentCard",
    "AgentOptions",
    "RunOptions",
    "delegation_tools",
    "handoff",
    "hand_back",
    "GoalAgent",
    "GoalResult",
    "run_agent",
    "run_agent_sync",
    "CustomAction",
    "Label",
    "Labelled",
    "Policy",
    "Store",
    "conversation_text",
    "detect_action_loop",
    "tool_documentation",
    "register_provider",
    "CachedModel",
    "StepsAgent",
    "AgentAnswer",
    "StepState",
    "ToolExecution",
    "StreamStart",
    "StreamEnd",
    "PlanEvent",
    "StepEvent",
    "ToolExecutionEvent",
    "ToolResultsEvent",
    "FinalEvent",
    "PlanAgent",
    "PoolAgent",
    "Pipeline",
    "PipelineResult",
    "PipelineStep",
    "When",
    "open_runtime",
    "open_portal",
    "Portal",
    "PortalAgent",
    "PortalSession",
    "PortalStream",
    "AsyncPortal",
    "AsyncPortalAgent",
    "AsyncPortalSession",
    "AsyncPortalStream",
    "Retention",
    "Runtime",
    "Session",
    "Mode",
    "Modes",
    "Schedule",
    "scheduling_tools",
    "EnvelopedTool",
    "Toolset",
    "StaticToolset",
    "Deferred",
    "open_toolset",
    "discover",
    "Discovery",
    "HTTPTool",
    "MCPServer",
    "OpenAPI",
    "mcp_servers",
    "api_tool",
    "Bearer",
    "Basic",
    "APIKey",
    "Credentials",
    "Guard",
    "Message",
    "CallProgress",
    "ChatMessage",
    "Thinking",
    "ToolSpec",
    "ResponseFormat",
    "Memory",
    "ModelView",
    "ShortTermMemory",
    "SlidingWindow",
    "SummarizingMemory",
    "Database",
    "database_tool",
    "Truncation",
    "SemanticCompression",
    "RelevanceFilter",
    "TimeDecay",
    "CallTools",
    "UpdateState",
    "Continue",
    "Fail",
    "Finish",
    "Profile",
    "Protocol",
    "PromptManager",
    "PromptTemplate",
    "Classifier",
    "Request",
    "SendReply",
    "TurnView",
    "extract_only",
    "ToolHooks",
    "Priority",
    "PriorityInbox",
    "Sender",
    "Text",
    "Image",
    "File",
    "Reply",
    "Event",
    "ToolCall",
    "ToolResult",
    "Failure",
    "Route",
    "Token",
    "Usage",
    "Tool",
    "FunctionTool",
    "tool",
    "ToolContext",
    "ToolRegistry",
    "LLM",
    "ModelResponse",
    "ModelRequest",
    "OpenAI",
    "OpenAIResponses",
    "Anthropic",
    "ScriptedLLM",
    "FallbackModel",
    "RateLimiter",
    "RateLimitedModel",
    "RetryingModel",
    "Retry",
    "Instruction",
    "ClassificationType",
    "AgentBuilder",
    "SchemaBuilder",
    "AgentFolder",
    "read_folder",
    "AgentGenerator",
    "Limits",
    "Approval",
    "ApprovalRequest",
    "Approve",
    "Reject",
    "Edit",
    "Respond",
    "InboxFull",
]

FAMILIES = {
    "llm": "clients.openai clients.openai_responses clients.anthropic scripted_model fallback_model wrapper_models",
    "protocols": " ".join(place.split(".")[2].partition(":")[0] for place in PROTOCOLS.values()),
}
"""Modules that can replace each other, by family."""

MEMBERS = [(family, member) for family, members in FAMILIES.items() for member in members.split()]


def tracked(*patterns: str) -> list[Path]:
    """Return the files of the repository, also those that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def python(code: str) -> str:
    """Return the output of a new interpreter."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


# --- layers ------------------------------------------------------------------------------


def test_imports_only_point_down():
    """The layers in setup.cfg are not violated."""
    command = [Path(sys.executable).with_name("lint-imports"), "--config", "setup.cfg", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("family", "member"), MEMBERS)
def test_modules_of_a_family_import_no_sibling(family, member):
    """A model client imports no other client, a protocol no other protocol, and a journal no other journal."""
    folder = ROOT / "actgent" / family / member.replace(".", "/")
    others = set(FAMILIES[family].split()) - {member}
    for path in sorted(folder.glob("*.py")) or [folder.with_suffix(".py")]:
        assert not others & imported_modules(path, package=f"actgent.{family}")


def imported_modules(path: Path, *, package: str) -> set[str]:
    """Return the modules of a package that a file imports, by their short names."""
    found = set()
    home = ".".join(path.parent.relative_to(ROOT).parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            module = f"{home}.{node.module or ''}".rstrip(".") if node.level else node.module or ""
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix(f"{package}.") for name in found if name.startswith(f"{package}.")}


# --- relations between modules -------------------------------------------------------------

ORGANS = ("sessions", "turns", "runtime", "agents")
TWICE: set[str] = set()
"""Names that modules of different folders define for different things. Do not add names."""


OF_USERS = {"agents.pipelines.pipeline_results: output"}
"""`Any` fields for values of the program. Another field with the same name has attributes that are read."""


def sources() -> dict[str, Path]:
    """Return the files of the package by module name without `actgent`. An `__init__.py` has the name of its folder."""
    package = ROOT / "actgent"
    paths = [path for path in sorted(package.rglob("*.py")) if path != package / "__init__.py"]
    return {
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


def is_package(name: str) -> bool:
    """Return True if a module name without `actgent` is a folder."""
    return (ROOT / "actgent" / name.replace(".", "/")).is_dir()


@pytest.fixture(scope="module")
def modules() -> dict[str, ast.Module]:
    """Return the syntax trees of the modules of the package."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in sources().items()}


def needs(name: str, module: ast.Module, known: "dict[str, ast.Module]") -> set[str]:
    """Return the modules that another module imports at any level, also for types only."""
    place, found = f"actgent.{name}".split("."), set()
    package = place if is_package(name) else place[:-1]
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            home = ".".join([*base, *([node.module] if node.module else [])])
            named = {f"{home}.{alias.name}".removeprefix("actgent."): home for alias in node.names}
            found |= {each if each in known else home for each, home in named.items()}
    return {each.removeprefix("actgent.") for each in found} & known.keys() - {name}


PRIVATE = re.compile(r"(\w+(?:\.\w+)*?\._(?!_)\w+)")
"""A dotted name up to its first private part."""


def private_imports(source: str) -> set[str]:
    """Return the private names of other packages that a file imports, or reads from an imported package."""
    tree, roots, names = ast.parse(source), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
            roots |= {alias.name for alias in node.names if alias.asname in (None, alias.name)}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names |= {each.value for each in node.args if isinstance(getattr(each, "value", None), str)}
    roots = {root.partition(".")[0] for root in roots}
    chains = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {chain for chain in chains if chain.partition(".")[0] in roots}
    ours = {"actgent", *sys.stdlib_module_names}
    found = {match[1] for name in names if (match := PRIVATE.match(name))}
    return {name for name in found if name.partition(".")[0] not in ours}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from openai._base_client import get_platform", {"openai._base_client"}),
        ("from anthropic import _types", {"anthropic._types"}),
        ("import openai.lib._tools as tools", {"openai.lib._tools"}),
        ("import openai\nopenai._base_client.get_platform()", {"openai._base_client"}),
        ("import importlib\nimportlib.import_module('openai._models')", {"openai._models"}),
        ("from openai import __version__\nfrom concurrent.futures import _base", set()),
        (
            "from ._openai_sdk_import import make_sdk\nfrom actgent.llm.clients._openai_sdk_import import make_sdk",
            set(),
        ),
    ],
)
def test_private_imports_are_found(source, found):
    """The scan finds each way to import a private module or to read it from an imported package."""
    assert private_imports(source) == found


def test_no_private_module_of_another_package_is_imported():
    """A release of another package may move its private modules without notice.

    One exception: the simulation runs trio's loop step by step, which no public function does. Its tests detect a move.
    """
    files = [*sources().values(), *sorted((ROOT / "examples").rglob("*.py"))]
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in private_imports(path.read_text(encoding="utf-8"))
    }
    assert found == {"actgent/simulation/simulated_world.py: trio._core"}


def test_waiting_functions_are_protected_from_ctrl_c(modules):
    """Functions that wait for a reschedule are protected from Ctrl-C. An interrupted task would break trio when another task wakes it."""
    functions = [
        node
        for module in modules.values()
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    waiting = [each for each in functions if "lowlevel.wait_task_rescheduled(" in ast.unparse(each.body)]
    assert waiting
    cut = [each.name for each in waiting if "enable_ki_protection" not in ast.unparse(each.decorator_list)]
    assert not cut


def test_no_module_imports_one_that_imports_it(modules):
    """The modules have no import cycle, for any purpose of an import."""
    sorter = graphlib.TopologicalSorter({name: needs(name, each, modules) for name, each in modules.items()})
    sorter.prepare()


def test_no_import_is_hidden_in_a_string(modules):
    """The check of layers reads import statements, so a module may not import another one by its name.

    The `__init__.py` of a package may load its public names by their modules. Tools are discovered in modules of programs,
    and the simulation replaces functions of modules.
    """
    found = {
        name
        for name, module in modules.items()
        if not (is_package(name) or name.startswith("simulation."))
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__"))
    }
    assert found == {"toolsets.tool_discovery"}


def inner_folders(modules: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return the subfolders of folders, with the modules of each."""
    found: dict[str, set[str]] = {
        name: set() for name in modules if name.count(".") == 1 and is_package(name)
    }
    for name in modules:
        if name.count(".") == 2:
            found[name.rpartition(".")[0]].add(name)
    return found


def session_of_context(folder: str, modules: dict[str, ast.Module]) -> set[str]:
    """Return the full names that the `__init__.py` of a folder exports. The set is empty for a namespace."""
    assigned = [node for node in modules[folder].body if isinstance(node, ast.Assign)]
    listed = [node.value for node in assigned if ast.unparse(node.targets[0]) == "__all__"]
    return {f"{folder}.{name}" for value in listed for name in ast.literal_eval(value)}


def wanted_elsewhere(modules: dict[str, ast.Module], *, late: bool) -> set[str]:
    """Return the modules of subfolders that other folders import at load time, or with `late` at any time."""
    found = set()
    for name, module in modules.items():
        at_once = [node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)]
        read = module if late else ast.Module(body=at_once, type_ignores=[])
        for needed in needs(name, read, modules):
            folder = needed.rpartition(".")[0]
            if needed.count(".") == 2 and not f"{name}.".startswith(f"{folder}."):
                found.add(needed)
    return found


def test_private_modules_are_imported_through_their_package(modules):
    """If a subfolder's `__init__.py` exports names, other modules import those. Lazy imports use the full path."""
    wanted = wanted_elsewhere(modules, late=False)
    faces = {folder: session_of_context(folder, modules) for folder in inner_folders(modules)}
    assert {each for each in wanted if (face := faces[each.rpartition(".")[0]]) and each not in face} == set()


def test_folder_without_exports_has_several_modules(modules):
    """A subfolder without exports has at least two modules that other folders import or that have public names."""
    public = {home.removeprefix("actgent.") for home in actgent._HOMES.values()}
    wanted = wanted_elsewhere(modules, late=True) | public
    namespaces = {
        folder: members & wanted
        for folder, members in inner_folders(modules).items()
        if not session_of_context(folder, modules)
    }
    assert {folder for folder, members in namespaces.items() if len(members) < 2} == set()


def test_no_import_is_only_for_types():
    """`TYPE_CHECKING` would hide an import cycle from the reader."""
    found = {name for name, path in sources().items() if "TYPE_CHECKING" in path.read_text(encoding="utf-8")}
    assert found == set()


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


UNWRAPPING = {"_context", "_agent", "_message", "_question", "_opener", "_held"}


def test_private_state_is_accessed_only_by_its_module(modules):
    """Only the module of a class accesses the internals of its sessions and agents."""
    found = set()
    for name, module in modules.items():
        if not name.startswith(ORGANS):
            continue
        own = {
            getattr(node, "name", None) or getattr(node, "attr", None)
            for node in ast.walk(module)
            if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.Attribute) and is_self(node.value))
        }
        found |= {
            f"{name}: {ast.unparse(node)}"
            for node in ast.walk(module)
            if isinstance(node, ast.Attribute) and node.attr in UNWRAPPING - own and not is_self(node.value)
        }
    assert found == set()


def is_any(annotation: ast.AST | None) -> bool:
    """Return True if an annotation is `Any` or `Any | None`."""
    text = "" if annotation is None else ast.unparse(annotation).strip("'\"")
    return text in {"Any", "Any | None", "typing.Any"}


def test_fields_whose_attributes_are_read_are_typed(modules):
    """A field of sessions, turns, runtime and agents is not `Any` if any of these packages reads its attributes."""
    organs = {name: module for name, module in modules.items() if name.startswith(ORGANS)}
    used = {
        node.value.attr
        for module in organs.values()
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)
    }
    fields = {
        f"{name}: {ast.unparse(node.target)}"
        for name, module in organs.items()
        for node in ast.walk(module)
        if isinstance(node, ast.AnnAssign) and is_any(node.annotation)
    }
    assert {each for each in fields if each.rpartition(" ")[2].removeprefix("self.") in used} == OF_USERS


def test_parameters_whose_attributes_are_read_are_typed(modules):
    """A parameter in sessions, turns, runtime and agents is not `Any` if its function reads its attributes."""
    found = set()
    for name, module in modules.items():
        for function in ast.walk(module) if name.startswith(ORGANS) else ():
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                values = [node.value for node in ast.walk(function) if isinstance(node, ast.Attribute)]
                used = {each.id for each in values if isinstance(each, ast.Name)}
                parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
                found |= {
                    f"{name}.{function.name}({each.arg})"
                    for each in parameters
                    if is_any(each.annotation) and each.arg in used
                }
    assert found == set()


def test_a_public_name_is_defined_once(modules):
    """Exceptions: modules of one folder, all of `cli`, and the names in `TWICE`."""
    homes: dict[str, set[str]] = {}
    for name, module in modules.items():
        for node in module.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                home = "cli" if name.startswith("cli.") else name.rpartition(".")[0] or name
                homes.setdefault(node.name, set()).add(home)
    assert {name for name, found in homes.items() if len(found) > 1 and name[0] != "_"} == TWICE


SAID = (
    "messages",
    "approvals",
    "events",
    "actors.dead_letters",
    "actors.supervision",
    "agents.goal.goal_result",
    "agents.goal.goal_run_in_one_call",
    "agents.single_turn_run",
    "agents.steps.streamed_run_state",
    "agents.steps.stream_events",
    "limits_and_schedules.durable_timer",
    "limits_and_schedules.quotas",
    "limits_and_schedules.schedule",
    "evaluation.cases_and_results",
    "evaluation.evaluation_report",
    "journal.journal_interface",
    "journal.record_feed_readers",
    "journal.session_list_queries",
    "journal.session_export_and_fork",
    "llm.model_interface",
    "llm.retry_policy",
    "llm.model_settings",
    "memory.longterm.memory_records",
    "memory.short_term_memory",
    "memory.sliding_window",
    "modes.mode_changes",
    "modes.mode",
    "modes.system_notice_interface",
    "protocols.protocol_interface",
    "protocols.plan.todo_list",
    "protocols.prompt_layers",
    "runtime.agent_directory",
    "runtime.introspection",
    "sessions.session_context",
    "state.handoff_state",
    "tools.tool_interface",
    "toolsets.http.api_credentials",
)
"""Modules with data for programs, in which each field has a docstring. Do not remove modules."""


def unsaid(cls: ast.ClassDef) -> list[str]:
    """Return the fields of an attrs class without an attribute docstring."""
    followed = zip(cls.body, [*cls.body[1:], None], strict=True)
    return [
        node.target.id
        for node, below in followed
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_"
        if not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant))
    ]


def test_each_data_field_has_a_docstring(modules):
    """Editors show attribute docstrings, so each states units, the meaning of None and empty, and the owner of an id."""
    found = {
        f"{name}.{cls.name}": fields
        for name in SAID
        for cls in modules[name].body
        if isinstance(cls, ast.ClassDef) and any("attrs." in ast.unparse(each) for each in cls.decorator_list)
        if (fields := unsaid(cls))
    }
    assert found == {}


UNSAID = {"AgentCore", "Webhook"}
"""Public classes with an undocumented field. Do not add classes."""


def test_each_field_of_a_public_class_has_a_docstring(modules):
    """Programs read all classes that `actgent` exports, so their fields have docstrings in any module."""
    found = {
        cls.name
        for module in modules.values()
        for cls in module.body
        if isinstance(cls, ast.ClassDef) and cls.name in actgent.__all__
        if any("attrs." in ast.unparse(each) for each in cls.decorator_list) and unsaid(cls)
    }
    assert found == UNSAID


# --- architecture pages -----------------------------------------------------------------------------


def rows(text: str) -> set[str]:
    """Return the names in the first column of the tables."""
    return set(re.findall(r"^\| `([\w./]+)` \|", text, re.MULTILINE))


def members(folder: Path) -> set[str]:
    """Return the files of a folder, and its folders with a slash."""
    paths = [path.relative_to(folder) for path in tracked("actgent") if folder in path.parents]
    return {path.parts[0] + "/" * (len(path.parts) > 1) for path in paths}


def sections() -> dict[str, str]:
    """Return the layer table of docs/architecture.md and the tables of the page of each layer, by folder."""
    layers = (
        page("docs/architecture.md").read_text(encoding="utf-8").split("\n## Layers\n")[1].split("\n## ")[0]
    )
    found = {"actgent": layers}
    for path in tracked("docs/architecture/*.md"):
        parts = re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        found |= {f"actgent/{part[1:].split('/')[0]}": part for part in parts if re.match(r"`\w+/`\n", part)}
    return found


def test_the_architecture_names_each_module():
    """The pages name exactly the folders and root files of the package and the modules of each folder."""
    there = {"actgent": members(ROOT / "actgent")}
    for folder in [name for name in there["actgent"] if name.endswith("/")]:
        there[f"actgent/{folder[:-1]}"] = members(ROOT / "actgent" / folder) - {"__init__.py"}
    assert {folder: rows(text) for folder, text in sections().items()} == there


def test_the_architecture_names_what_is_in_a_members_folder():
    """The row of a subfolder names all its modules without `.py`."""
    tables, wanting = sections(), set()
    for path in tracked("actgent/*/*/*.py"):
        folder = path.parent
        text = tables[folder.parent.relative_to(ROOT).as_posix()]
        row = next(line for line in text.splitlines() if line.startswith(f"| `{folder.name}/`"))
        if path.stem != "__init__" and f"`{path.stem}`" not in row:
            wanting.add(path.relative_to(ROOT).as_posix())
    assert wanting == set()


# --- public names ----------------------------------------------------------------------------


def test_package_exports_the_documented_names():
    """The public names are exactly those of docs/architecture/public-names.md and all errors."""
    errors = importlib.import_module("actgent.errors")
    raised = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert sorted({*FACE, *raised}) == actgent.__all__
    assert set(actgent.__all__) <= set(dir(actgent))


def test_each_public_name_is_in_the_reference():
    """A page of docs/reference has a line for each public name. Exceptions have one directive, which the test of the built site checks."""
    errors = vars(importlib.import_module("actgent.errors"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/reference").glob("*.md"))
    listed = set(re.findall(r"^\.\. auto\w+:: (\w+)", text, re.MULTILINE))
    assert [name for name in actgent.__all__ if name not in listed and name not in errors] == []


TROUBLESHOOTING = ROOT / "docs" / "help" / "troubleshooting.md"


def test_each_error_is_in_troubleshooting():
    """The page names each exception class and no deleted class."""
    errors = vars(importlib.import_module("actgent.errors"))
    classes = {
        name for name, each in errors.items() if isinstance(each, type) and issubclass(each, Exception)
    }
    text = TROUBLESHOOTING.read_text(encoding="utf-8")
    rows = re.findall(r"^\|.*\| `(\w+)` \|.*\|$", text, re.MULTILINE)
    assert sorted([*rows, "ActgentError"]) == sorted(classes)


def test_each_table_of_the_docs_begins_with_one_head():
    """Markdown renders a table only if its second line is a separator; a second head line makes it plain text."""
    bad = []
    for path in tracked("*.md"):
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            head, *rows = table.splitlines()
            if not rows or not re.fullmatch(r"\|[\s:|-]+\|", rows[0]):
                bad.append(f"{path.relative_to(ROOT)}: {head}")
    assert bad == []


def test_troubleshooting_quotes_error_texts():
    """Each message in the first column appears in the code, so a search for the text of an error finds its row."""
    text = TROUBLESHOOTING.read_text(encoding="utf-8")
    quoted = re.findall(r"^\| (?:the same, )?`([^`]+)` \| `\w+` \|", text, re.MULTILINE)
    code = "".join("".join(path.read_text(encoding="utf-8").split()) for path in tracked("actgent/errors*"))
    code = re.sub(r"\"f?\"|\{.*?\}", "", code)
    parts = [
        part.strip() for each in quoted for part in each.split("...") if each != "FILE:LINE: key: reason"
    ]
    assert [part for part in parts if re.sub(r"\"f?\"|\{.*?\}|\s", "", part) not in code] == []


@pytest.mark.parametrize("name", actgent.__all__)
def test_each_public_name_can_be_loaded(name):
    """Each public name can be imported under this name, and its type hints resolve."""
    value = getattr(actgent, name)
    assert value.__name__ == name
    assert isinstance(typing.get_type_hints(value), dict)


def test_type_checkers_see_the_same_names():
    """`__init__.pyi` imports the names that `__init__.py` loads, from the same modules."""
    assert names_in_stub(actgent) == actgent._HOMES
    schemas = importlib.import_module("actgent.tools.schemas")
    at_once = {"plain_form": "actgent.tools.schemas.form_schemas"}
    assert names_in_stub(schemas) == schemas._HOMES | at_once
    assert set(schemas.__all__) == {*schemas._HOMES, *at_once}


def names_in_stub(package: types.ModuleType) -> dict[str, str]:
    """Return the names that a package imports in its `__init__.pyi`, with their modules."""
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname: f"{package.__name__}.{node.module}" for node in imports for alias in node.names}


def test_a_wrong_name_is_an_attribute_error():
    """An unknown name of `actgent` is an AttributeError with this name, as in any module."""
    with pytest.raises(AttributeError, match="'actgent' has no attribute 'Agnet'"):
        getattr(actgent, "Agnet")  # noqa: B009 - a type checker would refuse the plain form


def test_tracebacks_name_errors_as_they_are_caught():
    """A traceback shows `actgent.InboxFull`. The class is the one of actgent.errors and can be pickled."""
    home = importlib.import_module("actgent.errors")
    assert actgent.ToolError is home.ToolError
    assert actgent.ToolError.__module__ == "actgent"
    assert pickle.loads(pickle.dumps(actgent.ToolError("no"))).args == ("no",)


def test_importing_the_package_loads_no_heavy_module():
    """`import actgent` loads only the standard library and the root module of the package."""
    printed = python(
        "import sys; before = set(sys.modules); import actgent; print(*sorted(set(sys.modules) - before))"
    )
    roots = {name.split(".")[0] for name in printed.split()} - set(sys.stdlib_module_names)
    assert roots == {"actgent"}
    assert [name for name in printed.split() if name.startswith("actgent.")] == []


def test_an_agent_without_a_provider_loads_no_sdk():
    """Agents with a scripted model load neither SDK nor the modules of the command line."""
    printed = python("import sys; from actgent import BareAgent, ScriptedLLM, tool; print(*sys.modules)")
    assert not {"openai", "anthropic", "genai_prices", "cyclopts", "rich"} & set(printed.split())


# --- documentation -----------------------------------------------------------------------


PAGES = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *sorted(path.name for path in (ROOT / "docs").glob("*.md")),
]
LINKED = [path.relative_to(ROOT).as_posix() for path in tracked("*.md") if "tests" not in path.parts]


def page(name: str) -> Path:
    return ROOT / name if (ROOT / name).exists() else ROOT / "docs" / name


def python_blocks() -> list[object]:
    """Return every python block of the pages, by page and line."""
    found = []
    for name in PAGES:
        text = page(name).read_text(encoding="utf-8")
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start(1))
            found.append(pytest.param("\n" * line + match[1], id=f"{name}:{line}"))
    return found


@pytest.mark.parametrize("code", python_blocks())
def test_documentation_runs(code, loopback_provider, capsys, tmp_path, monkeypatch):
    """Every python block of README and docs runs unchanged, with the provider on loopback as the model."""
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "documentation", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", LINKED)
def test_links_between_pages_lead_somewhere(name):
    """A relative link of a page names a file or folder that exists."""
    text = page(name).read_text(encoding="utf-8")
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    assert [target for target in targets if not (page(name).parent / target).exists()] == []


def test_documented_make_targets_exist():
    """Every `make` command on a page is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = "\n".join(page(name).read_text(encoding="utf-8") for name in PAGES)
    named = set(re.findall(r"(?:`|\$ )make ([a-z]+)", text))
    assert {"demo", "test", "check", "bench"} <= named <= targets


# --- forbidden content --------------------------------------------------------------

FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.])/(?:home|root|Users|work|opt)/\w+"),
    "the host of a package registry": re.compile(
        r"(?i)\b(?:files\.pythonhosted|pypi|registry\.npmjs)\.org\b"
    ),
    "a key": re.compile(r"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{24,}"),
    "an unresolved merge": re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_contains_paths_registries_or_keys(what):
    """A file contains no machine path, no address of a package registry, and no key."""
    found = []
    for path in tracked():
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in FORBIDDEN[what].finditer(text)]
    assert found == []


def test_each_ignored_ruff_rule_has_a_reason():
    """Every line of an ignore list in pyproject.toml ends with a comment of more than two words."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    rules = tomllib.loads(text)["tool"]["ruff"]["lint"]
    ignored = [*rules["ignore"], *(code for codes in rules["per-file-ignores"].values() for code in codes)]
    reasons = re.findall(r'^    "([A-Z]+[0-9]*)",\s+# \S+ \S+ \S+', text, re.MULTILINE)
    assert sorted(reasons) == sorted(ignored)


def test_soak_runs_each_file_that_reads_its_switch():
    """`make soak` names each test file that reads its switch, or a folder of the file."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    soaked = re.search(r"^SOAKED := (.*)$", makefile, re.MULTILINE)[1].split()
    asked = [
        path for path in tracked("tests/*.py") if "ACTGENT_" + "SOAK" in path.read_text(encoding="utf-8")
    ]
    places = [ROOT / name for name in soaked]
    assert [path for path in asked if not {path, *path.parents} & set(places)] == []
    assert [place for place in places if not any(place in (path, *path.parents) for path in asked)] == []


def test_matrix_runs_files_that_exist():
    """A moved test file would otherwise fail only in `make matrix`, after all other tests."""
    listed = re.findall(
        r'^    "(tests/\S+\.py)",$', (ROOT / "tests" / "matrix.py").read_text("utf-8"), re.MULTILINE
    )
    assert listed
    assert [name for name in listed if not (ROOT / name).is_file()] == []


def test_each_dependency_is_documented():
    """The table in docs/architecture/dependencies.md and pyproject.toml name the same packages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[\[<>=]", line)[0] for line in project["dependencies"]}
    section = (ROOT / "docs" / "architecture" / "dependencies.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ([a-z][\w., -]+) \|", section, re.MULTILINE)
    assert {name.strip() for cell in cells for name in cell.split(",")} - {"package"} == required


PLANNED = {"cattrs", "msgpack"}
"""Dependencies that no module needs to import yet."""


def test_each_dependency_is_imported():
    """The package imports each of its dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[.\[<>=]", line)[0].replace("-", "_") for line in project["dependencies"]}
    code = "\n".join(path.read_text(encoding="utf-8") for path in tracked("actgent/*.py"))
    roots = set(re.findall(r"^\s*(?:from|import) (\w+)", code, re.MULTILINE))
    assert required - roots == PLANNED - roots
