"""The classifier of a pair reads the format that its template requests, and the agent class verifies at compile time that they match.

Document: How Pairs Work Together; Extensibility Model ("Compile-time verification").

Differs: Python has no compile time. Define `examples` in the template. The constructor of the agent raises an error
if the classifier cannot read one of the examples.
"""

import json

from actgent import Agent, Classifier, ConfigurationError, PromptTemplate, Protocol, ScriptedLLM, SendReply


class Lines(PromptTemplate):
    name = "lines"
    template = "Answer like: {{ examples[0] }}"
    examples = ("NOTE: it rains",)


class LineReader(Classifier):
    def read(self, answer, view):
        kind, _, text = answer.text.partition(": ")
        return [SendReply(text=text, message_type=kind.lower())]


class JSONReader(Classifier):
    def read(self, answer, view):
        return [SendReply(text=json.loads(answer.text)["text"])]


def agent_of(classifier: Classifier) -> Agent:
    return Agent("clerk", llm=ScriptedLLM([]), protocol=Protocol.pair(Lines(), classifier))


def main() -> None:
    assert agent_of(LineReader()).protocol.name == "lines"
    for wrong in (JSONReader(), object()):
        try:
            agent_of(wrong)
        except ConfigurationError as error:
            assert "JSONReader" in str(error) or "Classifier" in str(error), error
        else:
            raise AssertionError(wrong)


main()
