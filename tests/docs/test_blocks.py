"""Every code block of the documentation runs, page by page from top to bottom, in a new folder for each page.

The blocks of one page share their names and their folder. A Python block that awaits at its top level runs on trio.
A console block runs each command that begins with `actgent` or `python`. Its output must contain the lines below the
command in their order, where `...` stands for any text. An `output` block is compared with the output of the last
Python block in the same way. A word in capitals is replaced if the Python code of the page defines it in
`PLACEHOLDERS`. The tests use no network: every provider address is a server on loopback, which answers with the
`ANSWERS` of the page. The page defines these in a block that its readers do not see.
"""

import ast
import contextlib
import inspect
import re
import shlex
import sys
import unittest
from pathlib import Path

import pytest
import trio
from sybil import Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUNNING = [
    page
    for page in PAGES
    if re.search(r"^```(python|console)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]
ELSEWHERE = {
    "make": "installs, or runs all tests: tests/test_repository.py compares the names of targets",
    "git": "the newcomer's path has a test of its own",
    "cd": "the newcomer's path has a test of its own",
    "pip": "the newcomer's path has a test of its own",
    "python3.11": "the newcomer's path has a test of its own",
    "export": "for the shell of a person",
    "systemctl": "for the service manager of a machine",
    "journalctl": "for the service manager of a machine",
    "podman": "for a container runtime",
}
"""Commands that are not run here, with the reasons."""
SHELL = {"|", "<", ">"}
"""Shell operators. Commands with these are not run."""
LANGUAGES = {
    "python",
    "console",
    "output",
    "text",
    "json",
    "yaml",
    "ini",
    "dockerfile",
    "markdown",
    "javascript",
    "ts",
    "tsx",
}
"""Allowed languages of a block. Blocks in the first three languages are run or compared with output."""


def run_python(example):
    """Run a block, on trio if it awaits at its top level."""
    example.namespace["CAPTURED"].readouterr()
    source = "\n" * (example.line + example.parsed.line_offset) + example.parsed
    code = compile(source, example.path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if not code.co_flags & inspect.CO_COROUTINE:
        exec(code, example.namespace)
        return

    async def main():
        await eval(code, example.namespace)

    trio.run(main)


def run_console(example):
    """Run the commands of a block in order, and compare the output of each with the lines below it."""
    for command, expected in commands_in(example.parsed):
        words = [
            example.namespace["PLACEHOLDERS"].get(word, word) for word in shlex.split(command, comments=True)
        ]
        if Path(words[0]).name in ELSEWHERE or SHELL & set(words):
            continue
        program = Path(words[0]).name
        assert program in {"actgent", "python"}, f"no test knows how to run {command!r}"
        run = [sys.executable, *words[1:]] if program == "python" else ["actgent", *words[1:]]
        done = example.namespace["COMMANDS"].run(run, capture_output=True, text=True, timeout=300, input="")
        said = done.stdout + done.stderr
        assert holds(said, expected), f"{command}\n{said}"
        assert done.returncode == 0 or expected, f"{command} ended with {done.returncode}\n{said}"


def holds(said, expected):
    """Return True if a text contains some lines in their order, where `...` stands for any text."""
    pattern = ".*".join(re.escape(part.strip()) for line in expected for part in line.split("..."))
    return re.search(pattern, said, re.DOTALL) is not None


def compare_output(example):
    """Compare a block with the output of the block before it."""
    said = example.namespace["CAPTURED"].readouterr().out
    assert holds(said, example.parsed.splitlines()), said


def commands_in(block):
    """Return the commands of a console block, each with its expected lines."""
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line.strip())
    return found


BLOCKS = Sybil(
    parsers=[
        CodeBlockParser("python", run_python),
        CodeBlockParser("console", run_console),
        CodeBlockParser("output", compare_output),
        SkipParser(),
    ],
    path=str(ROOT),
    patterns=["**/*.md"],
)


def run_blocks(document):
    """Run the blocks of a page in their order, except those with a reason to skip them."""
    for example in document.examples():
        with contextlib.suppress(unittest.SkipTest):
            example.evaluate()


@pytest.mark.parametrize("page", RUNNING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_code_blocks_run(page, request, capsys, tmp_path, monkeypatch):
    """The blocks of a page run in order, and a failed block is named by its line."""
    document = BLOCKS.parse(page)
    request.getfixturevalue("loopback_provider")
    monkeypatch.chdir(tmp_path)
    document.namespace["ANSWERS"] = request.getfixturevalue("planned_answers")
    document.namespace |= {"__name__": "__main__", "PLACEHOLDERS": {}, "CAPTURED": capsys}
    if "```console" in page.read_text(encoding="utf-8"):
        document.namespace["COMMANDS"] = request.getfixturevalue("commands")
    run_blocks(document)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_block_has_a_language(page):
    """Blocks in a language that is not run cannot be Python, so no Python block is skipped."""
    text = page.read_text(encoding="utf-8")
    opened = re.findall(r"^```+([^\n`]*)\n.*?^```+$", text, re.MULTILINE | re.DOTALL)
    directives = {"{toctree}", "{eval-rst}", "{raw} html", "{include}", "{glossary}"}
    foreign = (
        {"{code-block} python", "{code-block} typescript", "{code-block} yaml"}
        if page.parent.name == "migration"
        else set()
    )
    said = {name.strip() for name in opened}
    assert {re.sub(r"(?<=\}) \.\..*", "", name) for name in said} <= LANGUAGES | directives | foreign | {""}


PLANTED = {
    "it raises": "```python\n1 / 0\n```",
    "it prints something else": "```python\nprint(4)\n```\n\n```output\n5\n```",
    "a command fails": "```console\n$ actgent inspect missing.db\n```",
    "a command says something else": "```console\n$ actgent --version\ntwelve\n```",
    "nobody knows the command": "```console\n$ wget address\n```",
}


@pytest.mark.parametrize("what", PLANTED)
def test_wrong_block_is_detected(what, commands, capsys, tmp_path, monkeypatch):
    """A page fails if a block raises, prints another output, or runs a failing command."""
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(PLANTED[what], encoding="utf-8")
    document = BLOCKS.parse(page)
    document.namespace |= {"PLACEHOLDERS": {}, "CAPTURED": capsys, "COMMANDS": commands}
    with pytest.raises((AssertionError, ZeroDivisionError)):
        run_blocks(document)
