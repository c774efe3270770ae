"""Labels of untrusted sources: the join, the text in journals, and invalid names."""

import itertools

import pytest
import trio
import trio.testing

from actgent import ConfigurationError, Label, Policy
from actgent.information_flow_labels import TRUSTED, label_of, source_name, text_of
from actgent.tools.untrusted_sources_of_call import reading_text_of, sources_of_text

LABELS = [TRUSTED, Label({"web"}), Label({"mail"}), Label({"web", "mail"}), Label({"*"})]


@pytest.mark.parametrize(("one", "other", "third"), list(itertools.product(range(5), repeat=3)))
def test_labels_form_a_join_semilattice(one, other, third):
    """The join is associative, commutative and idempotent, and only adds sources."""
    a, b, c = LABELS[one], LABELS[other], LABELS[third]
    assert (a | b) | c == a | (b | c)
    assert a | b == b | a
    assert a | a == a
    assert a.sources <= (a | b).sources


def test_a_label_of_many_sources_has_the_source_of_all():
    """A ninth source gives the source `*`, in a label and in the text of a journal."""
    many = [f"tool{number}" for number in range(9)]
    assert Label(set(many[:8])).sources == set(many[:8])
    assert Label(set(many)).sources == {"*"}
    assert label_of(", ".join(many[:5]), ", ".join(many[4:])).sources == {"*"}


@pytest.mark.parametrize("label", LABELS)
def test_a_label_is_read_back_from_its_text(label):
    """The text of a journal has the same sources; a trusted label is an empty text."""
    assert label_of(text_of(label)) == label
    assert bool(text_of(label)) is not label.is_trusted


@pytest.mark.parametrize("text", ["web", " ", ",", "web, ", "\u202e"])
def test_a_text_that_is_not_empty_is_never_trusted(text):
    """A source without a readable name is also untrusted."""
    assert not label_of(text).is_trusted
    assert label_of("").is_trusted


@pytest.mark.parametrize("name", ["", " ", "a,b", "x" * 65, "a\u202eb"])
def test_a_source_has_a_usable_name(name):
    """A name that a journal or a user could misread is an error."""
    with pytest.raises(ConfigurationError, match="the name of a source"):
        Label({name})


def test_label_rejects_a_text_as_sources():
    """`Label("web")` would be a label of three sources, so it is an error."""
    with pytest.raises(ConfigurationError, match="sources="):
        Label("web")


def test_the_name_of_a_sender_is_a_usable_source():
    """A sender cannot choose a name that reads as several sources, or as an empty label."""
    assert label_of(source_name("user", "bob, owner")).sources == {"user:bob owner"}
    assert Label({source_name("user", "x" * 500)})


@pytest.mark.parametrize("options", [{"check": "all"}, {"violation": "stop"}])
def test_a_policy_rejects_unknown_values(options):
    """The error names the argument and its values."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Policy(**options)


async def test_nested_blocks_join_their_sources(nursery):
    """Nested blocks join their sources. A task that outlives its block may repeat the text, so it keeps the sources."""
    ended, found = trio.Event(), trio.Event()

    async def outlive():
        await ended.wait()
        assert sources_of_text.get() == "srv, page"
        found.set()

    with reading_text_of("srv"):
        with reading_text_of("page"):
            nursery.start_soon(outlive)
            await trio.testing.wait_all_tasks_blocked()
        assert sources_of_text.get() == "srv"
    ended.set()
    with trio.fail_after(10):
        await found.wait()
    assert sources_of_text.get() == ""
