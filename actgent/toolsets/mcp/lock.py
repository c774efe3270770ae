"""The lock: what tools and prompts of MCP servers looked like when somebody agreed to them.

A server may say something else tomorrow: other words for the model, other parameters. The lock holds a digest of each
tool's name, description, schema and hints, and of each prompt's name, description and arguments; one that differs is
withheld until it is locked again. What a prompt says with its arguments, like what a tool returns, no lock holds.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.support.files import write_whole
from actgent.support.strict_json import load_document

VERSION = 1
LOCK = "mcp.lock.json"
"""The lock's file beside the file of the servers."""


@attrs.frozen
class ToolLock:
    """Digests of tools and prompts, by server and name."""

    servers: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)
    """Of tools."""
    prompts: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)

    @classmethod
    def read(cls, path: Path) -> "ToolLock":
        """Read a lock's file.

        Raises:
            ConfigurationError: there is none, or it is no lock.
        """
        try:
            data = load_document(path.read_text(encoding="utf-8"))
            if data["version"] != VERSION:
                raise ConfigurationError(f"{path}: a newer actgent wrote this lock")
            return cls(_by_server(data["servers"]), _by_server(data.get("prompts", {})))
        except FileNotFoundError as error:
            raise ConfigurationError(f"no such file: {path}; `actgent mcp lock` makes it") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{path} is not a lock of MCP tools: `actgent mcp lock` makes it anew"
            ) from error

    def write(self, path: Path) -> None:
        """Write the lock's file whole, so that it reads well in a difference; in a block of `file_change(path)`."""
        data = {
            "version": VERSION,
            "servers": _by_server(self.servers),
            "prompts": _by_server({name: each for name, each in self.prompts.items() if each}),
        }
        write_whole(path, json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n")

    def of(self, server: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """The digests of a server's tools and of its prompts."""
        return self.servers.get(server, {}), self.prompts.get(server, {})

    def why_withheld(self, server: str, tool: str, digest: str) -> str | None:
        """Tell why a tool may not be used; None: it is as it was when it was locked."""
        return _why_withheld(self.servers.get(server, {}).get(tool), digest)

    def why_prompt_withheld(self, server: str, prompt: Mapping[str, Any]) -> str | None:
        """Tell why a prompt, as `MCPServer.prompts` lists it, may not be used; None: it is as it was."""
        return _why_withheld(self.prompts.get(server, {}).get(prompt["name"]), prompt_digest(prompt))


def _by_server(digests: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    return {server: dict(each) for server, each in digests.items()}


def _why_withheld(locked: str | None, digest: str) -> str | None:
    if locked is None:
        return "it is not in the lock; `actgent mcp lock` adds it"
    changed = "it has changed since it was locked; `actgent mcp lock` takes it as it is now"
    return None if locked == digest else changed


def tool_digest(listed: Any) -> str:
    """The digest of what a model would read of a tool, and of what the server says that it does outside."""
    hints = listed.annotations
    effects = [] if hints is None else [hints.read_only_hint, hints.idempotent_hint]
    said = [listed.name, listed.title, listed.description, listed.input_schema]
    return _digest([*said, effects] if any(effects) else said)


def prompt_digest(listed: Mapping[str, Any]) -> str:
    """The digest of what a person reads who chooses a prompt, as `MCPServer.prompts` lists it."""
    return _digest([listed["name"], listed["description"], listed["arguments"]])


def _digest(said: Any) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
