"""A reader of server-sent events."""

import json


def events_of(text):
    """Return the data of each event as JSON. The end marker of some protocols stays a text."""
    found = []
    for block in text.split("\n\n"):
        for line in block.split("\n"):
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                found.append(data if data == "[DONE]" else json.loads(data))
    return found
