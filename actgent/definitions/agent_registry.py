"""`AgentRegistry`: agent definitions stored by name, each in a folder that a program or `actgent run` can load."""

import fcntl
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from actgent.errors import ConfigurationError, InvalidFolder, did_you_mean_or_list
from actgent.protocols.protocol_interface import Instruction, Profile
from actgent.support.files_shared_by_processes import sync_folder, write_whole

from .agent_folder import BRAIN, AgentFolder, read_folder
from .folder_creation import write_folder
from .front_matter import split_front_matter

INSTRUCTIONS = "instructions"
"""Folder of the instructions in a definition. If a definition replaces another one, the folder has a random suffix."""


class AgentRegistry:
    """Stores agent definitions in one folder: their profile and instructions, but no code.

    `AgentBuilder.from_folder(registry.path_of("clerk"), tools=[...])` creates an agent from a definition.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the registry in the folder `path`, which is created if it does not exist.

        Raises:
            ConfigurationError: The folder cannot be created.
        """
        self._path = Path(path)
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"{self._path} cannot be created as an agent registry: {error.strerror}"
            ) from None

    def __repr__(self) -> str:
        return f"AgentRegistry({str(self._path)!r})"

    def save(
        self, profile: Profile, *, protocol: str = "", llm: str = "", replace: bool = False
    ) -> AgentFolder:
        """Save the definition of an agent under its name; pass `agent.profile`.

        If the new definition is invalid, an old one is not changed. A reader sees either the old or the new definition, also after a
        crash. The files of a replaced definition are removed at the next replacement, because programs may still read them. Other
        files in the folder are not changed.

        Args:
            profile: Profile of the agent.
            protocol: Name in `actgent.protocols.PROTOCOLS`; empty chooses by the instructions.
            llm: Name of the model; empty saves none.
            replace: If True, replace an existing definition with this name.

        Raises:
            ConfigurationError: The name is in use or not valid for a folder, or the protocol is unknown.
            InvalidFolder: The definition is invalid.
        """
        tools = [each.tool for each in profile.instructions if each.tool]
        if not replace or not self._has(profile.name):
            files = _files_of(profile, protocol, llm, INSTRUCTIONS)
            return write_folder(self._path, profile.name, files, tools=tools)
        files = _files_of(profile, protocol, llm, f"{INSTRUCTIONS}-{secrets.token_hex(8)}")
        with tempfile.TemporaryDirectory(prefix=".replaced-", dir=self._path) as staging:
            write_folder(staging, profile.name, files, tools=tools)  # raises if the definition is invalid
        with self._changing(profile.name) as target:
            _remove_unused_instructions(target)
            brain = files.pop(BRAIN)
            for path, text in files.items():
                (target / path).parent.mkdir(exist_ok=True)
                write_whole(target / path, text)
            sync_folder(target)
            write_whole(target / BRAIN, brain)  # from here on the folder has the new definition
            return read_folder(target, tools=tools)

    @contextmanager
    def _changing(self, name: str) -> Iterator[Path]:
        """Return a block in which no other process or thread changes the definition. The block yields the folder of the definition.

        Raises:
            ConfigurationError: The definition was removed, or cannot be written.
        """
        target = self.path_of(name)
        try:
            descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield target
            finally:
                os.close(descriptor)
        except OSError as error:
            raise ConfigurationError(f"{name!r} cannot be written: {error.strerror or error}") from error

    def load(self, name: str, *, tools: Iterable[str] = ()) -> AgentFolder:
        """Read the definition with this name; `tools` are the names of tools that the program will add.

        Raises:
            ConfigurationError: The name is unknown; the text suggests a similar one.
            InvalidFolder: The files of the definition are invalid.
        """
        while True:
            folder = self.path_of(name)
            seen = _version_of(folder)
            try:
                return read_folder(folder, tools=tools)
            except InvalidFolder:
                # Two replacements since `brain.md` was read have removed its other files, or the agent was removed.
                if seen == _version_of(folder):
                    raise

    def path_of(self, name: str) -> Path:
        """Return the folder of the agent with this name.

        Raises:
            ConfigurationError: The name is unknown; the text suggests a similar one.
        """
        if not self._has(name):
            known = self.names()
            near = did_you_mean_or_list(name, known) if known else "it is empty"
            raise ConfigurationError(f"the registry {self._path} has no agent {name!r:.100}: {near}")
        return self._path / name

    def names(self) -> tuple[str, ...]:
        """Return the names of all agents, sorted."""
        return tuple(sorted(entry.name for entry in self._path.iterdir() if self._has(entry.name)))

    def find(self, words: str) -> tuple[str, ...]:
        """Return the names of agents whose profile contains at least one of these words, best match first.

        Upper case and lower case are not distinguished.
        """
        query = set(re.findall(r"\w+", words.casefold()))
        found = {name: len(query & self._split_name(name)) for name in self.names()}
        return tuple(sorted((name for name in found if found[name]), key=lambda name: (-found[name], name)))

    def remove(self, name: str) -> None:
        """Delete the agent with this name and its files. After a crash, either all or none of the files exist.

        Raises:
            ConfigurationError: The name is unknown; the text suggests a similar one.
        """
        removed = self._path / f".removed-{secrets.token_hex(8)}"
        self.path_of(name).rename(removed)
        sync_folder(self._path)
        shutil.rmtree(removed)

    def _has(self, name: str) -> bool:
        """Return True if an agent with this name exists; False for unknown names, and for names that are paths."""
        return Path(name).name == name and not name.startswith(".") and (self._path / name / BRAIN).is_file()

    def _split_name(self, name: str) -> set[str]:
        read = self.load(name, tools=_referenced_tools(self._path / name))
        return set(re.findall(r"\w+", f"{read.name} {read.role} {read.goal} {read.capabilities}".casefold()))


def _referenced_tools(folder: Path) -> list[str]:
    """Return the names of the tools to which the instructions in an agent's folder refer."""
    found = (
        re.findall(r"^tool: (\".*\")$", file.read_text(), re.MULTILINE)
        for file in folder.glob(f"{INSTRUCTIONS}*/*.md")
    )
    return [json.loads(each) for names in found for each in names]


def _version_of(folder: Path) -> tuple[int, int] | None:
    """Return numbers that identify the version of the definition in a folder; None if the folder has no definition.

    Each replacement of the definition changes the numbers.
    """
    try:
        found = (folder / BRAIN).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _remove_unused_instructions(folder: Path) -> None:
    """Remove the folders of instructions that the current definition does not use: those of earlier definitions."""
    listed = split_front_matter((folder / BRAIN).read_text(), name=BRAIN).values.get(INSTRUCTIONS)
    if listed is None:  # the definition uses all files of the folder
        return
    used = {str(path).partition("/")[0] for path in (listed.values() if isinstance(listed, dict) else listed)}
    for each in folder.glob(f"{INSTRUCTIONS}*/"):
        if each.name not in used:
            shutil.rmtree(each)


def _files_of(profile: Profile, protocol: str, llm: str, folder: str) -> dict[str, str]:
    """Return the texts of a definition's files by path. The instructions are put into the subfolder `folder`."""
    paths = [f"{folder}/{number + 1}.md" for number in range(len(profile.instructions))]
    instructions = zip(paths, map(_instruction, profile.instructions), strict=True)
    return {BRAIN: _brain(profile, protocol, llm, paths), **dict(instructions)}


def _brain(profile: Profile, protocol: str, llm: str, paths: Sequence[str]) -> str:
    values: Mapping[str, object] = {
        "name": profile.name,
        "role": profile.role,
        "goal": profile.goal,
        "capabilities": profile.capabilities,
        "protocol": protocol,
        "llm": llm,
    }
    named = {each.name: path for each, path in zip(profile.instructions, paths, strict=True)}
    given = {name: value for name, value in values.items() if value}
    return _front_matter({**given, INSTRUCTIONS: named}) + profile.body


def _instruction(each: Instruction) -> str:
    values = {
        "instructionName": each.name,
        "schemaTemplate": dict(each.schema) if each.schema else None,
        "tool": each.tool,
    }
    return _front_matter({name: value for name, value in values.items() if value}) + each.description


def _front_matter(values: Mapping[str, object]) -> str:
    """Return YAML front matter with these values, each written as JSON, which YAML parses to the same value."""
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items())
    return f"---\n{lines}---\n"
