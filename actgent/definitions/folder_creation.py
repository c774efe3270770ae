"""Creation of agent folders: written to a temporary folder, validated, and renamed atomically."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from actgent.errors import ConfigurationError, InvalidFile, InvalidFolder
from actgent.messages import ToolCall
from actgent.protocols import PROTOCOLS, make_protocol

from .agent_folder import AgentFolder, read_folder
from .untrusted_folder_reading import steps_of

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
MAX_FILES = 200
"""Maximum number of files in a new folder."""

_BRAIN = """\
---
name: {name}
role: a friendly assistant
goal: answer questions, and greet users
capabilities: conversation, arithmetic
protocol: {protocol}
policy:
  violation: ask             # calls with effects wait for an approval after a tool with untrusted=True
# llm: openai:gpt-5.2        # or leave it to LLM_MODEL, or to --model
---
Answer in one or two sentences.
"""
_GREETING = """\
---
schemaTemplate:
  name: "<whom you greet>"
  content: "<your greeting>"
---
Someone says hello, or introduces themselves.
"""
_TOOLS = '''\
"""The tools of this agent: each function with @tool is one.

effect="pure": the tool changes nothing. untrusted=True: others write the text of its results, such as mails or pages.
"""

from actgent import tool


@tool(effect="pure")
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b
'''
_TEST = '''\
"""The agent of this folder, with a scripted model: no key, no network."""

from pathlib import Path

import trio

from actgent import AgentBuilder, ScriptedLLM

FOLDER = Path(__file__).parent


def test_it_greets():
    """A greeting of the model's reaches the user."""
    script = {script}
    agent = AgentBuilder.from_folder(FOLDER).llm(ScriptedLLM(script)).build()

    async def main():
        async with agent:
            return await agent.run("Hi, I am Ada.")

    assert trio.run(main).text == "Hello, Ada!"
'''


_CASE = """\
---
contains: Ada
---
Hi, I am Ada.
"""
_SCRIPTED_ANSWER = "Hello, Ada!"
"""Answer of the scripted model in the new agent's test."""
_CALL = ToolCall("add", {"a": 1, "b": 2})
_WITH_INSTRUCTIONS = ("simple", "react")


def new_folder(parent: str | os.PathLike[str], name: str, *, protocol: str = "simple") -> AgentFolder:
    """Create the folder of a small runnable agent with a tool, a test, and an instruction if its protocol supports them.

    Raises:
        ConfigurationError: The name is invalid or in use, or the protocol is unknown.
    """
    if protocol not in PROTOCOLS:
        raise ConfigurationError(f"unknown protocol {protocol!r}: choose one of {', '.join(PROTOCOLS)}")
    script = "".join(
        f"\n        {answer!r}," for answer in make_protocol(protocol).script(_SCRIPTED_ANSWER, _CALL)
    )
    files = {
        "brain.md": _BRAIN.format(name=name, protocol=protocol),
        "tools.py": _TOOLS,
        "tests/greeting.md": _CASE,
        f"test_{name.replace('-', '_')}.py": _TEST.replace("{script}", f"[{script}\n    ]"),
    }
    if protocol in _WITH_INSTRUCTIONS:
        files["instructions/greeting.md"] = _GREETING
    return write_folder(parent, name, files)


def write_folder(
    parent: str | os.PathLike[str], name: str, files: Mapping[str, str], *, tools: Iterable[str] = ()
) -> AgentFolder:
    """Write an agent's files into a new folder. If the files are invalid or the folder exists, write nothing.

    Args:
        parent: Existing parent folder.
        name: Name of the folder: lower-case letters, digits, `-` and `_`.
        files: Text by path, relative to the folder.
        tools: Names of tools that a program will add, see `read_folder`.

    Raises:
        ConfigurationError: The name or a path is invalid, or the name is in use.
        InvalidFolder: The files do not define a valid agent.
    """
    parent, target = Path(parent), Path(parent) / name
    _check_name(parent, name)
    if len(files) > MAX_FILES:
        raise ConfigurationError(f"an agent's folder must have at most {MAX_FILES} files")
    staging = Path(tempfile.mkdtemp(prefix=f".{name[:32]}-", dir=parent))
    try:
        for path, text in files.items():
            _write(staging, path, text)
        _validate(staging, target, tools)
        target.mkdir()  # fails if the path exists; rename() may then replace this empty folder
        staging.chmod(0o755)
        staging.rename(target)
    except FileExistsError:
        raise ConfigurationError(
            f"{name!r} already exists, and nothing is overwritten: choose another name, or remove the folder"
        ) from None
    except (OSError, UnicodeEncodeError) as error:
        raise ConfigurationError(f"{name!r} cannot be written: {type(error).__name__}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return read_folder(target, tools=tools)


def _check_name(parent: Path, name: str) -> None:
    if not _NAME.fullmatch(name):
        fit = re.sub(r"[^a-z0-9_-]+", "-", name.casefold()).strip("-")[:64]
        meant = f": write {fit}" if _NAME.fullmatch(fit) else ""
        raise ConfigurationError(
            f"the name of an agent's folder must consist of 1 to 64 lower-case letters, digits, - and _, a letter first, not {name!r:.80}{meant}"
        )
    if not parent.is_dir():
        raise ConfigurationError(f"the folder {parent} does not exist: create it first")
    if name in (entry.name.casefold() for entry in parent.iterdir()):
        raise ConfigurationError(
            f"{name!r} already exists, and nothing is overwritten: choose another name, or remove the folder"
        )


def _write(folder: Path, path: str, text: str) -> None:
    try:
        steps = steps_of(path)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    file = folder.joinpath(*steps)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("x", encoding="utf-8") as stream:
        stream.write(text)


def _validate(staging: Path, target: Path, tools: Iterable[str]) -> None:
    """Validate the new folder while it is still at the temporary path `staging`. Errors name files by their paths in `target`."""
    try:
        read_folder(staging, tools=tools)
    except InvalidFolder as error:
        named = [
            InvalidFile(p.file.replace(str(staging), str(target), 1), p.line, p.reason, p.key)
            for p in error.problems
        ]
        raise InvalidFolder(named) from None
