"""Goal from the command line: `actgent goal` loads tools and the type of the answer from the files of a folder.

In this example, the model is a script on loopback. With an API key of a provider, the command needs no other program.
"""

import json
import os
import shlex
import sys
import tempfile
from functools import partial

import trio

from actgent.testing import open_provider

FILES = {
    "lakes.tools.py": '''
def depth(state, args):
    """Look up how deep a lake is, in metres.

    Args:
        lake (str): Its name.
    """
    return ("depth", {"baikal": 1642}[args["lake"]])
''',
    "lakes.output.py": """
import pydantic

class Lake(pydantic.BaseModel):
    name: str
    metres: int

output_schema = Lake
""",
}


def act(action: str, **params: object) -> str:
    return json.dumps({"action": action, "params": params, "reasoning": "as planned"})


SCRIPT = [
    act("plan", steps=["look it up"]),
    act("execute", tool="depth", args={"lake": "baikal"}),
    act("evaluate", achieved=True, feedback="the depth is there"),
    '{"name": "Baikal", "metres": 1642}',
]


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            await trio.Path(folder, name).write_text(text, encoding="utf-8")
        command = "goal 'How deep is Lake Baikal?' --search-dir . --model openai:gpt-5.2 --max-iterations 6 --verbose"
        print(f"$ actgent {command}")
        arguments = [sys.executable, "-m", "actgent", *shlex.split(command)]
        async with open_provider(SCRIPT) as provider:
            model = {"OPENAI_BASE_URL": provider.openai_url, "OPENAI_API_KEY": "any"}
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **model}
            run = partial(trio.run_process, capture_stdout=True, capture_stderr=True, check=False)
            done = await run(arguments, cwd=folder, env=environment)
        print(done.stderr.decode(), done.stdout.decode(), f"exit code {done.returncode}", sep="")


if __name__ == "__main__":
    trio.run(main)
