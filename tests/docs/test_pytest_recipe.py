"""The pytest recipe of the testing guide passes in a new folder, with the settings of the page."""

import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "testing.md"
SHOP = """
from actgent import BareAgent, tool


@tool(effect="pure")
async def find_order(number: int) -> str:
    "Look up an order."
    return "a red bicycle"


def make_desk(llm):
    return BareAgent("desk", llm=llm, tools=[find_order])
"""


def test_pytest_recipe_passes(tmp_path):
    """Both tests of the page run on trio, with only the settings of the page."""
    text = GUIDE.read_text(encoding="utf-8")
    [settings] = re.findall(
        r"^```text\n(\[tool\.pytest\.ini_options\]\n.*?)^```", text, re.MULTILINE | re.DOTALL
    )
    [program] = re.findall(r"^```python\n(import pytest\n.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    (tmp_path / "test_desk.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_desk.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
