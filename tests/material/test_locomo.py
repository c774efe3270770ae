"""The LoCoMo benchmark on two conversations in the published format of LoCoMo."""

import json
import zipfile

import pytest

from . import locomo


def sample(name, answer):
    return {
        "session_1_date_time": "4:04 pm on 20 January, 2023",
        "session_1": [
            {"speaker": name, "dia_id": "D1:1", "text": "Which bicycle did you buy?"},
            {"speaker": "Bob", "dia_id": "D1:2", "text": answer, "blip_caption": "a street"},
        ],
        "session_2_date_time": "9:30 am on 2 March, 2023",
        "session_2": [{"speaker": "Bob", "dia_id": "D2:1", "text": "It rains today."}],
        "qa": [
            {"question": "Which bicycle is it?", "answer": answer, "evidence": ["D1:02"], "category": 4},
            {
                "question": "When does it rain?",
                "answer": "2 March",
                "evidence": ["D:2:1; D1:1"],
                "category": 2,
            },
            {"question": "Who won?", "evidence": ["D7:1"], "category": 5},
        ],
    }


def test_both_publications_are_read(tmp_path):
    """Both published formats are accepted: an archive of conversations, and one file. Evidence that names no turn is left out."""
    samples = [sample("Ada", "The red one."), sample("Eve", "The blue one.")]
    as_zip, as_json = tmp_path / "zip", tmp_path / "json"
    for folder in (as_zip, as_json):
        folder.mkdir()
    with zipfile.ZipFile(as_zip / "locomo10.zip", "w") as archive:
        for number, each in enumerate(samples):
            archive.writestr(f"data/{number}.json", json.dumps(each))
    in_one = [{"qa": each.pop("qa"), "conversation": each} for each in samples]
    (as_json / "locomo10.json").write_text(json.dumps(in_one))
    talks = locomo.load(as_zip)
    assert locomo.load(as_json) == talks
    assert [turn.text for turn in talks[0].turns][1] == "Bob: The red one. (shares a street)"
    assert [(each.kind, each.evidence) for each in talks[0].questions] == [
        (4, {"D1:2"}),
        (2, {"D2:1", "D1:1"}),
    ]


async def test_answers_are_measured(tmp_path):
    """The table has the share of evidence among the first memories, and of questions with a session of evidence among the first."""
    (tmp_path / "locomo10.json").write_text(json.dumps([sample("Ada", "The red one.")]))
    talks = locomo.load(tmp_path)
    async with locomo.remembered("memory:", talks) as memories:
        first, second = await locomo.ask(memories, talks)
    assert first.ids[:2] == ["D1:1", "D1:2"]
    assert [first.recall(k) for k in (1, 2)] == [0, 1]
    assert [second.recall(1), second.any_session(1)] == [0.5, True]
    assert locomo.recall([first, second], 1) == pytest.approx(0.25)
