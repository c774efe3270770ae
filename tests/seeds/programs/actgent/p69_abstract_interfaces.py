"""All classifiers implement the interface AbstractClassifier, and all templates implement IAgentPromptTemplate. The core uses only these
interfaces.

Document: Core Design Principles, Common Interface.
"""

from actgent import Agent, BareAgent, Classifier, PromptTemplate, ReActAgent, ScriptedLLM, SimpleAgent


def main() -> None:
    for kind in (BareAgent, SimpleAgent, ReActAgent):
        protocol = kind("host", llm=ScriptedLLM([])).protocol
        assert isinstance(protocol, Classifier) and isinstance(protocol, PromptTemplate), kind
        for name in ("read", "classify", "validate_response"):
            assert callable(getattr(protocol, name))
        for name in ("template", "assistant_template", "user_template"):
            assert isinstance(getattr(protocol, name), str)
    try:
        Classifier()  # abstract: it cannot be made
    except TypeError as error:
        assert "read" in str(error)
    else:
        raise AssertionError("an abstract classifier was made")
    assert issubclass(ReActAgent, Agent)
    assert issubclass(SimpleAgent, Agent)
    assert issubclass(BareAgent, Agent)


main()
