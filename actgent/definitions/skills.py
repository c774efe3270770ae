"""Notes and skills of an agent: `AGENTS.md`, and `skills/*/SKILL.md`, which the model loads with a tool.

Sources: https://agents.md, https://agentskills.io/specification. Unknown fields of a skill are ignored.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from actgent.errors import InvalidFile, ToolError
from actgent.tools.tool_interface import Effect, Tool, ToolContext

from .front_matter import Document, split_front_matter
from .untrusted_folder_reading import Folder

NOTES = "AGENTS.md"
MAX_SKILLS = 100
MAX_DESCRIPTION_CHARS = 1_024
_MAX_NOTES_BYTES = 64 * 1024
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_MAX_NAME_CHARS = 64


@attrs.frozen
class Skill:
    """Instructions for a kind of task that the model can load on demand, with their files."""

    name: str
    """Name of the skill, equal to the name of its folder."""
    description: str
    """Description of when to use the skill, for the system prompt."""
    body: str = attrs.field(repr=False)
    """Instructions: the text of SKILL.md."""
    folder: Path
    """Folder that contains the files of the skill."""


def read_notes(folder: Folder) -> str:
    """Return the text of AGENTS.md; empty if the file does not exist.

    Raises:
        InvalidFile: The file exists but cannot be read.
    """
    return (folder.find(NOTES, limit=_MAX_NOTES_BYTES) or "").strip()


def read_skills(folder: Folder, problems: list[InvalidFile]) -> tuple[Skill, ...]:
    """Return the skills of an agent's folder, and append errors to `problems`."""
    skills = []
    for name in _names(folder, problems):
        try:
            if (text := folder.find(f"skills/{name}/SKILL.md")) is not None:
                skills.append(_skill(folder, name, text, problems))
        except InvalidFile as error:
            problems.append(error)
    return tuple(skills)


def _names(folder: Folder, problems: list[InvalidFile]) -> Sequence[str]:
    """Return the names of the skill folders in `skills/`. If they cannot be used, add an error to `problems` and return no names."""
    try:
        names = folder.names("skills")
    except InvalidFile as error:
        problems.append(error)
        return ()
    if len(names) > MAX_SKILLS:
        problems.append(InvalidFile(folder.name_of("skills"), 1, f"more than {MAX_SKILLS} skills"))
        return ()
    return names


def _skill(folder: Folder, name: str, text: str, problems: list[InvalidFile]) -> Skill:
    file = folder.name_of(f"skills/{name}/SKILL.md")
    document = split_front_matter(text, name=file)
    for key, reason in _reasons(document, name):
        problems.append(InvalidFile(file, document.line((key,)), reason, key))
    return Skill(name, str(document.values.get("description")), document.body, folder.path / "skills" / name)


def _reasons(document: Document, folder: str) -> Iterator[tuple[str, str]]:
    name, description = document.values.get("name"), document.values.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _MAX_NAME_CHARS:
        yield "name", "the name of a skill has at most 64 lower-case letters, digits and single hyphens"
    elif name != folder:
        yield "name", "the name of a skill must be the name of its folder"
    if not isinstance(description, str) or not 0 < len(description.strip()) <= MAX_DESCRIPTION_CHARS:
        yield "description", f"the description must have 1 to {MAX_DESCRIPTION_CHARS:,} characters"


def skills_prompt(skills: Sequence[Skill]) -> str:
    """Return the names and descriptions of skills for the system prompt; empty without skills."""
    if not skills:
        return ""
    lines = "\n".join(f"- {skill.name}: {' '.join(skill.description.split())}" for skill in skills)
    return f"Skills: when a task fits one of these, read it with the tool {LoadSkill.name} first.\n{lines}"


class LoadSkill(Tool):
    """Tool that returns the instructions of a skill, or one of its further files."""

    name = "load_skill"
    description = "Read the instructions of a skill, or one of the files that they speak of."
    effect: Effect = "pure"

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._skills = {skill.name: skill for skill in skills}
        self.parameters: Mapping[str, Any] = {
            "type": "object",
            "properties": {
                "name": {"enum": list(self._skills), "description": "The skill."},
                "file": {
                    "type": "string",
                    "description": "A file of the skill, relative to its folder; leave it out for the instructions.",
                },
            },
            "required": ["name"],
            "additionalProperties": False,
        }

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        skill = self._skills[arguments["name"]]
        if not (file := arguments.get("file")):
            return skill.body
        try:
            with Folder.open(skill.folder) as folder:
                return folder.read(file)
        except InvalidFile as error:
            raise ToolError(
                f"skill {skill.name!r} has no file of this path that can be read: {error.reason}"
            ) from None
