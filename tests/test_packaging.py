"""The package for a new user: the build, the installation outside of this repository, and the first use.

No network is used: the build and the installation find their dependencies in a folder of links to installed packages.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = PROJECT["version"]
NEWCOMER = ROOT / "docs" / "tutorial" / "index.md"

PROGRAM = """
import trio
from actgent import ReActAgent, ScriptedLLM, open_runtime

ANSWER = '{"question_nature": "SIMPLE", "context": "", "primary_action": {"response_purpose": "DIRECT_RESPONSE", \
"response_description": "Noted.", "response_content": {}}}'

async def main():
    async with open_runtime(journal="sqlite:///agents.db") as runtime:
        clerk = await runtime.start(ReActAgent("clerk", llm=ScriptedLLM([ANSWER])))
        print(await clerk.run("Hello"))

trio.run(main)
"""
"""Program that needs the prompt templates and the journal schema, which are not Python files."""


def tracked(*patterns):
    """Return the files of the repository, also those that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def copy_tracked(folder):
    """Copy the repository without the files that git ignores."""
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)


@pytest.fixture
def dependencies(tmp_path):
    """Return a folder with links to all installed packages except actgent."""
    folder = tmp_path / "dependencies"
    folder.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "actgent" not in path.name and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture
def environment(dependencies):
    """Return an environment that finds these packages, uses no index, and builds with the installed tools."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    options = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_QUIET": "1"}
    options |= {"PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return kept | options | {"PYTHONPATH": str(dependencies)}


def run(command, *, cwd, env):
    """Run a command that must succeed. Return its output."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_a_wheel_and_an_sdist_hold_the_whole_package(tmp_path, environment):
    """The wheel is built from the sdist. An installation elsewhere has the data files, the command and the version."""
    pytest.importorskip("build", reason="the extra `dev` is not installed")
    source, built = tmp_path / "source", tmp_path / "built"
    copy_tracked(source)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(built), str(source)]
    run(command, cwd=tmp_path, env=environment)
    wheel, sdist = built / f"actgent-{VERSION}-py3-none-any.whl", built / f"actgent-{VERSION}.tar.gz"
    with zipfile.ZipFile(wheel) as archive:
        assert set(tracked("actgent")) - set(archive.namelist()) == set()
    with tarfile.open(sdist) as archive:
        held = {name.removeprefix(f"actgent-{VERSION}/") for name in archive.getnames()}
    assert set(tracked()) - held == set()
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"actgent-{VERSION}.dist-info/METADATA").decode()
    assert "Project-URL: Documentation" in metadata
    description = metadata.partition("\n\n")[2]
    assert "pip install" in description
    assert (
        re.findall(r"\]\((?!https://)([^)]+)\)", description) == []
    )  # an index does not resolve relative links

    elsewhere = tmp_path / "elsewhere"
    run([sys.executable, "-m", "venv", "--without-pip", str(elsewhere)], cwd=tmp_path, env=environment)
    python = elsewhere / "bin" / "python"
    run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", str(wheel)],
        cwd=tmp_path,
        env=environment,
    )
    home = run([python, "-c", "import actgent; print(actgent.__file__)"], cwd=tmp_path, env=environment)
    assert Path(home.strip()).is_relative_to(elsewhere)
    assert run([elsewhere / "bin" / "actgent", "--version"], cwd=tmp_path, env=environment).strip() == VERSION
    assert run([python, "-c", PROGRAM], cwd=tmp_path, env=environment) == "Noted.\n"


def test_a_newcomer_is_answered_after_five_commands(tmp_path, environment):
    """The five commands and fifteen lines of the tutorial run unchanged, from a clone to a tool of the user."""
    text = NEWCOMER.read_text(encoding="utf-8")
    commands = re.findall(r"^\$ (.+)$", text, re.MULTILINE)
    program, printed = re.findall(r"^```(?:python|output)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(commands) <= 5
    assert len([line for line in program.splitlines() if line.strip()]) <= 15

    clone, content = tmp_path / "actgent", ""
    for command in commands:
        words = command.replace("ADDRESS", str(ROOT)).split()
        if words[0] == "cd":
            assert tmp_path / words[1] == clone
            (clone / "first.py").write_text(program, encoding="utf-8")
            continue
        if words[0].startswith("python3") and shutil.which(words[0]) is None:
            words[0] = sys.executable
        content = run(words, cwd=clone if clone.exists() else tmp_path, env=environment)
    assert content == printed


def docker_steps(path):
    """Return the instructions of a Dockerfile as pairs of name and arguments. An option before the arguments is dropped."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, re.sub(r"^(--\S+ )+", "", rest)


def test_the_image_of_the_dockerfile_answers(tmp_path, environment):
    """The steps run in a folder, without a container engine. Then the health check succeeds."""
    places = {name: str(tmp_path / name) for name in ("source", "app", "data")}
    python = tmp_path / "python" / "bin"
    run([sys.executable, "-m", "venv", "--without-pip", str(python.parent)], cwd=tmp_path, env=environment)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def placed(text):
        for name, place in places.items():
            text = re.sub(rf"(?<![\w.])/{name}\b", place, text)
        return (
            text.replace("8300", str(port)).replace("0.0.0.0", "127.0.0.1").replace("chown nobody", "test -d")
        )

    env = environment | {"PATH": f"{python}{os.pathsep}{os.environ['PATH']}", "PIP_NO_DEPS": "1"}
    steps = list(docker_steps(ROOT / "examples" / "docker" / "Dockerfile"))
    for name, rest in steps:
        if name == "COPY":
            source, target = rest.split()
            if source == ".":
                copy_tracked(Path(placed(target)))
            else:
                Path(placed(target)).parent.mkdir(exist_ok=True)
                shutil.copy(ROOT / source, placed(target))
        elif name == "RUN":
            command = placed(rest).replace(
                "pip install", f"{sys.executable} -m pip --python {python}/python install"
            )
            run(["sh", "-c", command], cwd=tmp_path, env=env)
    commands = dict(steps)
    new = "actgent token new --file /data/tokens.toml --name me --owner me --scope admin"
    assert new in (ROOT / "examples" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    run(["sh", "-c", placed(new)], cwd=tmp_path, env=env)
    server = subprocess.Popen(
        json.loads(placed(commands["CMD"])), cwd=places["app"], env=env, stdout=subprocess.PIPE
    )
    try:
        assert f":{port}" in server.stdout.readline().decode()
        health = json.loads(placed(commands["HEALTHCHECK"].partition("CMD ")[2]))
        run([str(python / "python"), *health[1:]], cwd=tmp_path, env=env)
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 128 + signal.SIGTERM
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@pytest.mark.parametrize("name", [name for name in tracked(".github") if name.endswith(".yml")])
def test_files_of_the_public_host_can_be_read(name):
    """The files are YAML, and the make targets that they name exist."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert isinstance(YAML(typ="safe").load(text), dict)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"run: make (\w+)", text)) <= targets


LOADED = {
    "": ["actgent.journal.sqlite", "actgent.testing.provider", "actgent.definitions.agent_folder"],
    "cli": [
        "actgent.cli.main",
        "actgent.cli.commands.agents",
        "actgent.cli.console.line_editor",
        "actgent.cli.demos.demo",
        "actgent.cli.eval_command",
        "actgent.cli.simulate_command",
        "actgent.cli.ci_command",
    ],
    "cluster": ["actgent.cluster.cluster_member", "actgent.cluster.cluster_node"],
    "encryption": ["actgent.journal.encryption"],
    "mcp": ["actgent.toolsets.mcp.server_connection"],
    "otel": ["actgent.observe"],
    "postgres": ["actgent.journal.postgres.journal"],
    "web": ["actgent.web.gateway_setup"],
}
"""Modules that a user of each extra imports. The key "" is the installation without extras."""
CHECKS = {
    "cluster": "from actgent.journal.cluster_interface import check_cluster_extra as check; check()",
    "web": "from actgent.web.gateway import check_extra as check; check()",
}
"""Code of the check that names a missing extra."""


def gather(requirements, extra, found):
    """Add all distributions that requirements need, directly or not, to a set of names with extras."""
    for text in requirements:
        expected = Requirement(text)
        if expected.marker and not expected.marker.evaluate({"extra": extra}):
            continue
        for part in {"", *expected.extras} - {known for name, known in found if name == expected.name}:
            found.add((expected.name, part))
            gather(required(expected.name, part), part, found)


def required(name, extra):
    """Return the requirements of a distribution. For actgent, read pyproject.toml, because the installed metadata may be old."""
    if name == "actgent":
        return PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    return distribution(name).requires or []


@pytest.mark.parametrize("extra", LOADED)
def test_an_extra_brings_all_that_is_loaded_with_it(tmp_path, extra):
    """The modules of an extra can be imported in an environment with only the requirements of this extra."""
    found = set()
    gather([f"actgent[{extra}]"], "", found)
    files = chain(*(distribution(name).files or () for name, part in found if not part and name != "actgent"))
    for top in {path.parts[0] for path in files} - {"..", "__pycache__"}:
        (tmp_path / top).symlink_to(Path(sysconfig.get_path("platlib"), top))
    program = "; ".join([*(f"import {module}" for module in LOADED[extra]), CHECKS.get(extra, "")])
    places = os.pathsep.join([str(tmp_path), str(ROOT)])
    run([sys.executable, "-S", "-c", program], cwd=tmp_path, env=os.environ | {"PYTHONPATH": places})
