"""Invalid requests: a valid body in which values have other types or are missing."""

import copy

VALUES = [
    None, True, False, 0, -1, 5, 2**63, 1.5, "", "x", "yes", "\x00", "é" * 10, "[" * 500, [], [5], ["x"], [[]],
    [{}], {}, {"type": "x"}, {"type": 5}, {"name": 5}, {"x": {"x": []}},
]  # fmt: skip


def places_of(value):
    """Yield the container and the key of each value in a body, including nested values."""
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in list(members):
        yield value, key
        if isinstance(each, dict | list) and each:
            yield from places_of(each)


def mutate(body, pick):
    """Return a copy of a body with one or two changes, and a description of them. `pick` is a `random.Random`."""
    changed, changes = copy.deepcopy(body), []
    for _ in range(pick.choice((1, 1, 2))):
        places = list(places_of(changed))
        if not places:
            break
        container, key = pick.choice(places)
        if pick.random() < 0.15:
            changes.append(f"without {key}")
            del container[key]
        else:
            container[key] = copy.deepcopy(pick.choice(VALUES))
            changes.append(f"{key}={container[key]!r:.60}")
    return changed, ", ".join(changes)
