"""Structured output: pass a type, and get a value of this type or an error.

The request contains the schema of the type, and actgent validates the answer. If the answer is invalid, the model is
called again with the error. In this example, the first answer has a negative price.
"""

from typing import Annotated

import attrs
import msgspec
import trio

from actgent import BareAgent, ScriptedLLM


@attrs.frozen
class Offer:
    """Offer of a seller."""

    item: str
    price: Annotated[float, msgspec.Meta(ge=0)]
    colours: list[str] = attrs.field(factory=list)


SCRIPT = [
    '{"item": "bicycle", "price": -1}',
    '```json\n{"item": "bicycle", "price": 120.0, "colours": ["red", "white"]}\n```',
]


async def main() -> None:
    model = ScriptedLLM(SCRIPT)
    async with BareAgent("reader", role="a reader of small ads", llm=model) as reader:
        reply = await reader.run("For sale: red and white bicycle, 120 euros.", output=Offer)
    offer = reply.data
    print(type(offer).__name__, offer)
    print(f"{offer.item} for {offer.price:.2f}, after {len(model.chats)} model calls")


if __name__ == "__main__":
    trio.run(main)
