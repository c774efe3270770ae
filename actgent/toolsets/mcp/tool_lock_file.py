"""Lock file with digests of the approved tools and prompts of MCP servers.

A server may change its tools at any time. The lock has a digest of each tool's name, description, schema and hints,
and of each prompt's name, description and arguments. A tool or prompt with another digest is blocked until it is
locked again. Results of tools and contents of prompts are not locked.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.support.files_shared_by_processes import write_whole
from actgent.support.strict_json import load_document

VERSION = 1
LOCK = "mcp.lock.json"
"""Name of the lock file, in the folder of the servers file."""


@attrs.frozen
class ToolLock:
    """Digests of tools and prompts, by server and name."""

    servers: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)
    """Digests of tools, by server and tool name."""
    prompts: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)
    """Digests of prompts, by server and prompt name."""

    @classmethod
    def read(cls, path: Path) -> "ToolLock":
        """Read a lock file, which has the digests of MCP tools and prompts.

        Raises:
            ConfigurationError: The file does not exist or is not a lock file.
        """
        try:
            data = load_document(path.read_text(encoding="utf-8"))
            if data["version"] != VERSION:
                raise ConfigurationError(
                    f"{path}: a newer version of actgent wrote this lock file: upgrade actgent"
                )
            return cls(_copy_digests(data["servers"]), _copy_digests(data.get("prompts", {})))
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"the lock file {path} does not exist: `actgent mcp lock` creates it"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{path} is not a lock file of MCP tools: `actgent mcp lock` creates a new one"
            ) from error

    def write(self, path: Path) -> None:
        """Write the lock file atomically, with sorted keys for readable diffs. The caller must be inside `file_change(path)`."""
        data = {
            "version": VERSION,
            "servers": _copy_digests(self.servers),
            "prompts": _copy_digests({name: each for name, each in self.prompts.items() if each}),
        }
        write_whole(path, json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n")

    def digests_of(self, server: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return the locked digests of a server: the digests of tools by tool name, and of prompts by prompt name."""
        return self.servers.get(server, {}), self.prompts.get(server, {})

    def withheld_reason(self, server: str, tool: str, digest: str) -> str | None:
        """Return why agents must not use a tool: the tool is new or was changed.

        Return None if `digest` equals the locked digest.
        """
        return _withheld_reason(self.servers.get(server, {}).get(tool), digest)

    def prompt_withheld_reason(self, server: str, prompt: Mapping[str, Any]) -> str | None:
        """Return why a prompt must not be used: the prompt is new or was changed. Return None if its digest is locked.

        `prompt` is an item of `MCPServer.prompts`.
        """
        return _withheld_reason(self.prompts.get(server, {}).get(prompt["name"]), prompt_digest(prompt))


def _copy_digests(digests: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    return {server: dict(each) for server, each in digests.items()}


def _withheld_reason(locked: str | None, digest: str) -> str | None:
    if locked is None:
        return "it is not in the lock: `actgent mcp lock` adds it"
    changed = "it has changed since it was locked: `actgent mcp lock` accepts the change"
    return None if locked == digest else changed


def tool_digest(listed: Any) -> str:
    """Return the digest of a listed tool's texts, schema and effect hints. A later change by the server changes the digest."""
    hints = listed.annotations
    effects = [] if hints is None else [hints.read_only_hint, hints.idempotent_hint]
    content = [listed.name, listed.title, listed.description, listed.input_schema]
    return _digest([*content, effects] if any(effects) else content)


def prompt_digest(listed: Mapping[str, Any]) -> str:
    """Return the digest of a prompt's name, description and arguments, as `MCPServer.prompts` lists them."""
    return _digest([listed["name"], listed["description"], listed["arguments"]])


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
