"""Each block of code in the documents has its translation, in no more lines than there, or docs/specification/parity.md says why not."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DOCUMENTS = ROOT.parent / "shared" / "seeds"
PAGE = ROOT / "docs" / "specification" / "parity.md"
BLOCKS = {"actgent": 45, "art": 1, "acton": 8, "appagent": 0, "tagent": 11}
"""How many blocks of each document name a language."""
_FENCE = re.compile(r"\s*```(\w*)\s*$")
_BEGIN = re.compile(r"\s*# block ([\d, ]+)$")


def translations(seed):
    """The lines of each translated block, by its number."""
    found, numbers, lines = {}, (), []
    path = HERE / f"test_{seed}.py"
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        if begins := _BEGIN.match(line):
            assert not numbers, f"{path.name}: block {begins[1]} begins in block {numbers}"
            numbers, lines = [int(each) for each in begins[1].split(",")], []
        elif line.strip() == "# end":
            assert not found.keys() & set(numbers), (seed, numbers)
            found |= dict.fromkeys(numbers, lines)
            numbers = ()
        elif numbers:
            lines.append(line)
    assert not numbers
    return found


def originals(seed):
    """The lines of each block with a language, by its number."""
    found, language, lines = [], None, []
    for line in (DOCUMENTS / f"{seed}.md").read_text(encoding="utf-8").splitlines():
        fence = _FENCE.match(line)
        if language is None and fence:
            language, lines = fence[1], []
        elif language is not None and fence and not fence[1]:
            found += [lines] if language else []
            language = None
        else:
            lines.append(line)
    return dict(enumerate(found, 1))


def counted(lines):
    """The lines that say something: neither empty nor a comment alone."""
    return sum(bool(line.strip()) and not line.strip().startswith(("#", "//")) for line in lines)


def excused():
    """The blocks that the page says take more lines, as `seed number`."""
    return set(re.findall(r"^\| (\w+) (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize(("seed", "count"), BLOCKS.items())
def test_each_block_is_translated(seed, count):
    """All of them, each once, and each says something."""
    found = translations(seed)
    assert sorted(found) == list(range(1, count + 1))
    assert all(map(counted, found.values()))


@pytest.mark.parametrize("seed", BLOCKS)
def test_no_translation_is_longer(seed):
    """Counted beside the document itself, which is no part of this project; and no excuse stands that is not needed."""
    if not DOCUMENTS.is_dir():
        pytest.skip("the documents are not on this machine")
    there, here = originals(seed), translations(seed)
    assert len(there) == BLOCKS[seed]
    longer = {
        (seed, str(number)) for number, lines in here.items() if counted(lines) > counted(there[number])
    }
    assert longer == {each for each in excused() if each[0] == seed}


def test_excuses_have_reasons():
    """A row of the page's table says in words why."""
    rows = re.findall(r"^\| (\w+ \d+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for name, _ in rows} == {" ".join(each) for each in excused()}
    assert all(len(reason) > 30 for _, reason in rows)
