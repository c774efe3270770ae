"""The benchmark with tau2-bench's tasks, on a small environment with the same methods."""

import json
from types import SimpleNamespace

import pytest

from . import tau2


class Kit:
    """Functions that change a database, in the format of tau2-bench's kits."""

    def __init__(self, database):
        self.database = database

    def get_tools(self):
        """Return the names of the functions."""
        return [name for name in ("enable", "toggle") if hasattr(self, name)]


class Company(Kit):
    """Functions of the assistant."""

    def enable(self, line: str) -> str:
        """Enable roaming of a line."""
        self.database["enabled"].append(line)
        return "enabled"


class Phone(Kit):
    """Functions of the user."""

    def toggle(self, times: int = 1) -> str:
        """Toggle roaming of the phone."""
        self.database["on"] += times
        return "toggled"


class Environment:
    """Both kits, with a number that only `sync_tools` changes."""

    policy = "Help."

    def __init__(self):
        self.company, self.phone, self.connected = {"enabled": []}, {"on": 0}, 0
        self.tools, self.user_tools = Company(self.company), Phone(self.phone)

    def sync_tools(self):
        """Connect both databases."""
        self.connected += 1

    def make_tool_call(self, *, tool_name, requestor, **arguments):
        """Make a call."""
        kit = self.user_tools if requestor == "user" else self.tools
        return getattr(kit, tool_name)(**arguments)

    def get_db_hash(self):
        """Return the assistant's database as text."""
        return json.dumps(self.company)

    def get_user_db_hash(self):
        """Return the user's database as text."""
        return json.dumps([self.phone, self.connected])

    def run_env_assertion(self, assertion, *, raise_assertion_error):
        """Return True if the number of toggles of the phone is as expected."""
        return self.phone["on"] == assertion


def action(requestor, name, **arguments):
    """Return a true action of a task."""
    return SimpleNamespace(requestor=requestor, name=name, arguments=arguments)


def task(*actions, assertions=()):
    """Return a task with these true actions."""
    criteria = SimpleNamespace(actions=actions, env_assertions=assertions)
    return SimpleNamespace(id="t", user_scenario="You have no data abroad.", evaluation_criteria=criteria)


TASKS = [
    task(action("assistant", "enable", line="L1"), action("user", "toggle", times=2), assertions=[2]),
    task(
        action("user", "toggle"),
        action("user", "toggle", times=3),
        action("assistant", "enable", line="L1"),
        action("assistant", "enable", line="L2"),
        action("user", "toggle"),
    ),
    task(),
]


async def test_agent_and_user_make_the_true_actions():
    """The databases of both sides and their connection after each call equal those of the environment itself."""
    domain = tau2.Domain("telephone", TASKS, lambda _: Environment())
    found = await tau2.play_all(domain, TASKS, lambda _: None)
    assert (found.tasks, found.actions, found.user_actions) == (3, 7, 4)
    assert (found.wrong, found.unmet, found.errors, found.raised) == ([], [], [], 0)
    assert found.achieved == 3


async def test_a_difference_is_found():
    """An environment that loses an action of the user has another database, and its assertion fails."""

    class Deaf(Environment):
        def __init__(self):
            super().__init__()
            self.user_tools = Phone({"on": 0})

    made = [Environment, Deaf]
    domain = tau2.Domain("telephone", TASKS, lambda _: made.pop(0)())
    found = await tau2.play_all(domain, TASKS[:1], lambda _: None)
    assert (found.wrong, found.unmet) == (["t"], ["t"])


@pytest.mark.parametrize(
    ("by_user", "turns"),
    [("", [("", "")]), ("aau", [("", "aa"), ("u", "")]), ("uaua", [("", ""), ("u", "a"), ("u", "a")])],
    ids=["none", "agent-first", "user-first"],
)
def test_actions_are_split_by_turn(by_user, turns):
    """The user acts before a message, and the assistant before an answer."""
    actions = [tau2.Action(each == "u", each, {}) for each in by_user]
    split = tau2.split_by_turn(actions)
    assert [tuple("".join(one.name for one in side) for side in turn) for turn in split] == turns
