"""`AgentRegistry`: agent definitions stored by name, each in a folder that a program or `actgent run` can load."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from actgent.errors import ConfigurationError, nearest
from actgent.protocols.protocol_interface import Instruction, Profile

from .agent_folder import BRAIN, AgentFolder, read_folder
from .folder_creation import write_folder


class AgentRegistry:
    """Stores agent definitions in one folder: their profile and instructions, but no code.

    `AgentBuilder.from_folder(registry.path_of("clerk"), tools=[...])` creates an agent from a definition.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        """Args: `place` is the folder, which is created if it does not exist.

        Raises:
            ConfigurationError: The folder cannot be created.
        """
        self.place = Path(place)
        try:
            self.place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"{self.place} cannot be created as an agent registry: {error.strerror}"
            ) from None

    def __repr__(self) -> str:
        return f"AgentRegistry({str(self.place)!r})"

    def save(
        self, profile: Profile, *, protocol: str = "", llm: str = "", replace: bool = False
    ) -> AgentFolder:
        """Save the definition of an agent under its name; pass `agent.profile`.

        Invalid definitions leave the old one unchanged.

        A new definition appears complete. For a moment during a replacement, the registry has no definition
        of this name.

        Args:
            profile: Profile of the agent.
            protocol: Name in `actgent.protocols.PROTOCOLS`; empty chooses by the instructions.
            llm: Name of the model; empty saves none.
            replace: If True, replace an existing definition with this name.

        Raises:
            ConfigurationError: The name is in use or not valid for a folder, or the protocol is unknown.
            InvalidFolder: The definition is invalid.
        """
        files = {BRAIN: _brain(profile, protocol, llm), **dict(_instructions(profile.instructions))}
        tools = [each.tool for each in profile.instructions if each.tool]
        if not replace or not self._has(profile.name):
            return write_folder(self.place, profile.name, files, tools=tools)
        with tempfile.TemporaryDirectory(prefix=".replaced-", dir=self.place) as staging:
            write_folder(
                staging, profile.name, files, tools=tools
            )  # validated before the old definition is removed
            target = self.place / profile.name
            target.rename(Path(staging) / ".old")
            (Path(staging) / profile.name).rename(target)
        return read_folder(target, tools=tools)

    def load(self, name: str, *, tools: Iterable[str] = ()) -> AgentFolder:
        """Read the definition with this name; `tools` are the names of tools that the program will add.

        Raises:
            ConfigurationError: The name is unknown; the text suggests a similar one.
            InvalidFolder: The files of the definition are invalid.
        """
        return read_folder(self.path_of(name), tools=tools)

    def path_of(self, name: str) -> Path:
        """Return the folder of the agent with this name.

        Raises:
            ConfigurationError: The name is unknown; the text suggests a similar one.
        """
        if not self._has(name):
            known = self.names()
            near = nearest(name, known) if known else "it is empty"
            raise ConfigurationError(f"the registry {self.place} has no agent {name!r:.100}: {near}")
        return self.place / name

    def names(self) -> tuple[str, ...]:
        """Return the names of all agents, sorted."""
        return tuple(sorted(entry.name for entry in self.place.iterdir() if self._has(entry.name)))

    def find(self, words: str) -> tuple[str, ...]:
        """Return the names of agents whose profile contains at least one of these words, best match first.

        Upper and lower case are equal.
        """
        query = set(re.findall(r"\w+", words.casefold()))
        found = {name: len(query & self._split_name(name)) for name in self.names()}
        return tuple(sorted((name for name in found if found[name]), key=lambda name: (-found[name], name)))

    def remove(self, name: str) -> None:
        """Delete the agent with this name and its files.

        Raises:
            ConfigurationError: The name is unknown; the text suggests a similar one.
        """
        shutil.rmtree(self.path_of(name))

    def _has(self, name: str) -> bool:
        """Return True if an agent with this name exists; a name that is a path is rejected."""
        return Path(name).name == name and not name.startswith(".") and (self.place / name / BRAIN).is_file()

    def _split_name(self, name: str) -> set[str]:
        read = read_folder(self.place / name, tools=_referenced_tools(self.place / name))
        return set(re.findall(r"\w+", f"{read.name} {read.role} {read.goal} {read.capabilities}".casefold()))


def _referenced_tools(folder: Path) -> list[str]:
    """Return the names of the tools that the instructions in a folder refer to."""
    found = (
        re.findall(r"^tool: (\".*\")$", file.read_text(), re.MULTILINE)
        for file in folder.glob("instructions/*.md")
    )
    return [json.loads(each) for names in found for each in names]


def _brain(profile: Profile, protocol: str, llm: str) -> str:
    values: Mapping[str, object] = {
        "name": profile.name,
        "role": profile.role,
        "goal": profile.goal,
        "capabilities": profile.capabilities,
        "protocol": protocol,
        "llm": llm,
        "instructions": {each.name: _path(n) for n, each in enumerate(profile.instructions)},
    }
    return _front_matter({name: value for name, value in values.items() if value}) + profile.body


def _instructions(instructions: Iterable[Instruction]) -> Iterable[tuple[str, str]]:
    for number, each in enumerate(instructions):
        values = {
            "instructionName": each.name,
            "schemaTemplate": dict(each.schema) if each.schema else None,
            "tool": each.tool,
        }
        yield (
            _path(number),
            _front_matter({name: value for name, value in values.items() if value}) + each.description,
        )


def _path(number: int) -> str:
    return f"instructions/{number + 1}.md"


def _front_matter(values: Mapping[str, object]) -> str:
    """Return front matter with JSON values, which YAML parses to the same values."""
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items())
    return f"---\n{lines}---\n"
