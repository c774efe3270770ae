"""`AgentRegistry`, agents that are kept by name: each is a folder as any other, which a program or `actgent run` makes an agent of."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from actgent.errors import ConfigurationError, nearest
from actgent.protocols.base import Instruction, Profile

from .instructions import BRAIN, AgentFolder, read_folder
from .scaffold import write_folder


class AgentRegistry:
    """The definitions of agents in one folder: who they are, and in which forms they answer, but none of their code.

    `AgentBuilder.from_folder(registry.path_of("clerk"), tools=[...])` makes an agent of one again.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        """Args: `place` is the folder, which is made if it is not there.

        Raises:
            ConfigurationError: it cannot be made.
        """
        self.place = Path(place)
        try:
            self.place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{self.place} cannot hold agents: {error.strerror}") from None

    def __repr__(self) -> str:
        return f"AgentRegistry({str(self.place)!r})"

    def save(
        self, profile: Profile, *, protocol: str = "", llm: str = "", replace: bool = False
    ) -> AgentFolder:
        """Keep an agent under its name, whole or not at all; `agent.profile` is what it takes.

        `protocol` is one of `actgent.protocols.PROTOCOLS`, by default that of the answers it knows; `llm` a model by its name.
        With `replace` it takes the place of the one of that name.

        Raises:
            ConfigurationError: the name is taken or none of a folder, or the protocol is unknown.
            InvalidFolder: what is to be kept makes no agent.
        """
        files = {BRAIN: _brain(profile, protocol, llm), **dict(_instructions(profile.instructions))}
        tools = [each.tool for each in profile.instructions if each.tool]
        if not replace or not self._has(profile.name):
            return write_folder(self.place, profile.name, files, tools=tools)
        with tempfile.TemporaryDirectory(prefix=".replaced-", dir=self.place) as aside:
            write_folder(aside, profile.name, files, tools=tools)  # checked before the old one goes
            kept = self.place / profile.name
            kept.rename(Path(aside) / ".old")
            (Path(aside) / profile.name).rename(kept)
        return read_folder(kept, tools=tools)

    def load(self, name: str, *, tools: Iterable[str] = ()) -> AgentFolder:
        """Read the definition of this name; `tools` are the names of those that the program will add.

        Raises:
            ConfigurationError: there is none; the text says the nearest.
            InvalidFolder: somebody has broken its files.
        """
        return read_folder(self.path_of(name), tools=tools)

    def path_of(self, name: str) -> Path:
        """The folder of the agent of this name.

        Raises:
            ConfigurationError: there is none; the text says the nearest.
        """
        if not self._has(name):
            known = self.names()
            near = nearest(name, known) if known else "it is empty"
            raise ConfigurationError(f"the registry {self.place} has no agent {name!r:.100}: {near}")
        return self.place / name

    def names(self) -> tuple[str, ...]:
        """The names of all agents, in order."""
        return tuple(sorted(entry.name for entry in self.place.iterdir() if self._has(entry.name)))

    def find(self, words: str) -> tuple[str, ...]:
        """The names of agents whose role, goal or capabilities have any of these words, those with the most first."""
        wanted = set(re.findall(r"\w+", words.casefold()))
        found = {name: len(wanted & self._words(name)) for name in self.names()}
        return tuple(sorted((name for name in found if found[name]), key=lambda name: (-found[name], name)))

    def remove(self, name: str) -> None:
        """Delete the agent of this name, with its files.

        Raises:
            ConfigurationError: there is none; the text says the nearest.
        """
        shutil.rmtree(self.path_of(name))

    def _has(self, name: str) -> bool:
        """True for the name of an agent; one that leads elsewhere is none."""
        return Path(name).name == name and not name.startswith(".") and (self.place / name / BRAIN).is_file()

    def _words(self, name: str) -> set[str]:
        read = read_folder(self.place / name, tools=_tools_named(self.place / name))
        return set(re.findall(r"\w+", f"{read.name} {read.role} {read.goal} {read.capabilities}".casefold()))


def _tools_named(folder: Path) -> list[str]:
    """The names of tools that a program has to add, as the instructions say them."""
    found = (
        re.findall(r"^tool: (\".*\")$", file.read_text(), re.MULTILINE)
        for file in folder.glob("instructions/*.md")
    )
    return [json.loads(each) for names in found for each in names]


def _brain(profile: Profile, protocol: str, llm: str) -> str:
    said: Mapping[str, object] = {
        "name": profile.name,
        "role": profile.role,
        "goal": profile.goal,
        "capabilities": profile.capabilities,
        "protocol": protocol,
        "llm": llm,
        "instructions": {each.name: _path(n) for n, each in enumerate(profile.instructions)},
    }
    return _front({name: value for name, value in said.items() if value}) + profile.body


def _instructions(instructions: Iterable[Instruction]) -> Iterable[tuple[str, str]]:
    for number, each in enumerate(instructions):
        said = {
            "instructionName": each.name,
            "schemaTemplate": dict(each.schema) if each.schema else None,
            "tool": each.tool,
        }
        yield _path(number), _front({name: value for name, value in said.items() if value}) + each.description


def _path(number: int) -> str:
    return f"instructions/{number + 1}.md"


def _front(values: Mapping[str, object]) -> str:
    """Front matter; JSON is YAML, and nothing in it is read as anything else."""
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items())
    return f"---\n{lines}---\n"
