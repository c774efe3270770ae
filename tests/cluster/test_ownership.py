"""The ownership of partitions against a broker, a database and other nodes in one thread: every order of events that can be.

What is checked all the time: what is unfinished is taken up at most once in an epoch, and never beside turns of an epoch before.
At the end, when nothing fails any more: each partition is served by the node that is to have it, and by nobody else.
"""

from collections import Counter, deque

import hypothesis
import pytest
from hypothesis import strategies

from actgent.cluster.ownership import Do, Ownership, PartitionState
from actgent.cluster.placement import Placement, assign_partitions


class Node:
    """A node, and what it has to do."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.ownership = Ownership(name, world.count)
        self.is_alive = self.is_connected = True
        self.epochs = {}
        """What its journal knows."""
        self.turns = {}
        """The epoch in which turns of a partition run, or ran until they were cut."""
        self.ending = set()
        self.left_clean, self.counted, self.served = {}, set(), set()
        """Of partitions in their epochs: whether the last owner left it clean, what was counted, and where requests are dealt with."""
        self.todo = deque()
        self.events = []

    def note(self, todo):
        self.todo += todo

    def do_next(self):
        """Carry out the oldest thing that is to be done."""
        each = self.todo.popleft()
        getattr(self, each.verb)(each)

    def hear_next(self, random):
        """Hear of something that happened."""
        self.note(self.events.pop(random.randrange(len(self.events)))())

    def say(self, fn, *args, **options):
        self.events.append(lambda: fn(*args, **options))

    # --- what is done ------------------------------------------------------------------

    def subscribe(self, do):
        if self.is_connected:
            self.world.subscribe(self, do.partition)

    def close_channel(self, do):
        self.world.unsubscribe(self, do.partition)

    def take(self, do):
        world, number = self.world, do.partition
        assert number not in self.ending, "turns of an epoch before still run"
        if world.random.random() < 0.1 and not world.is_calm:
            self.say(self.ownership.not_taken, number)
        elif world.owner[number] == self.name and self.epochs.get(number) == world.epoch[number]:
            self.say(self.ownership.kept, number)
        else:
            world.epoch[number] += 1
            was_clean, world.clean[number], world.owner[number] = world.clean[number], False, self.name
            self.epochs[number] = world.epoch[number]
            self.say(self.ownership.taken, number, world.epoch[number], was_clean=was_clean)

    def recover(self, do):
        number = do.partition
        assert number not in self.turns, "turns of an epoch before still run"
        self.turns[number] = do.epoch
        if self.epochs.get(number) == do.epoch:  # or it was fenced between
            self.world.recovered[number, do.epoch] += 1
            assert self.world.recovered[number, do.epoch] == 1, "taken up twice in one epoch"
        if self.world.epoch[number] == do.epoch:
            assert not (do.was_clean and number in self.world.cut_off), (
                "nobody counts that its last owner died"
            )
            self.world.cut_off.add(number)
        self.left_clean[number, do.epoch] = do.was_clean
        self.say(self.count, do)

    def count(self, do):
        self.counted.add((do.partition, do.epoch))
        return self.ownership.counted(do.partition, do.epoch)

    def has_counted(self, number, epoch):
        """True if the next owner needs not know how this one got it."""
        place = number, epoch
        return self.world.recovered[place] and (place in self.counted or self.left_clean[place])

    def serve(self, do):
        place = do.partition, do.epoch
        assert place in self.counted, "requests are begun before what is unfinished is counted"
        assert do.was_clean == (place in self.served or self.left_clean[place]), (
            "nobody counts requests of which the last owner may have died"
        )
        self.served.add(place)

    def evict(self, do):
        if self.turns.get(do.partition) == do.epoch:
            self.ending.add(do.partition)
        else:  # they have ended by themselves
            self.say(self.ownership.turns_ended, do.partition, do.epoch)

    drain = evict

    def give_back(self, do):
        number = do.partition
        assert number not in self.turns, "turns still run"
        if self.epochs.get(number) == do.epoch:
            del self.epochs[number]
            self.world.clean[number] |= self.world.epoch[number] == do.epoch
            if self.has_counted(number, do.epoch) and self.world.epoch[number] == do.epoch:
                self.world.cut_off.discard(number)
        self.say(self.ownership.given_back, number, do.epoch)

    # --- what happens ------------------------------------------------------------------

    def end_turns(self, number):
        self.ending.discard(number)
        self.say(self.ownership.turns_ended, number, self.turns.pop(number))

    def find_fenced(self):
        for number in [each for each, epoch in self.epochs.items() if self.world.epoch[each] != epoch]:
            self.say(self.ownership.fenced, number, self.epochs.pop(number))


class World:
    """A broker, a database, and nodes."""

    def __init__(self, random, count, nodes):
        self.random, self.count = random, count
        self.is_calm = False
        self.consumers = [[] for _ in range(count)]
        self.epoch, self.owner, self.clean = [0] * count, [""] * count, [True] * count
        self.recovered = Counter()
        self.cut_off = set()
        """Partitions in which something may have been left in the middle, until they are taken up and given back."""
        self.nodes = [Node(self, f"n{number}") for number in range(nodes)]

    def subscribe(self, node, number):
        if node not in self.consumers[number]:
            self.consumers[number].append(node)
            self.hand_over(number)

    def unsubscribe(self, node, number):
        if node in self.consumers[number]:
            was_first = self.consumers[number][0] is node
            self.consumers[number].remove(node)
            if was_first:
                self.hand_over(number)

    def hand_over(self, number):
        """The broker gives the token to its first consumer, who may be gone when it comes."""
        if not self.consumers[number]:
            return
        first = self.consumers[number][0]
        first.events.append(
            lambda: first.ownership.delivered(number) if self.consumers[number][:1] == [first] else []
        )

    @property
    def live(self):
        return [node for node in self.nodes if node.is_alive]

    @property
    def places(self):
        return assign_partitions(self.count, [node.name for node in self.live])

    def choices(self):
        """All that may happen next."""
        found = []
        for node in self.live:
            found += [node.do_next] * bool(node.todo) * 3
            found += [lambda node=node: node.hear_next(self.random)] * bool(node.events) * 3
            found += [lambda node=node, number=number: node.end_turns(number) for number in node.ending]
            found.append(lambda node=node: node.note(node.ownership.look(self.places)))
            found.append(node.find_fenced)
            found.append(lambda node=node: self.change_connection(node))
        found += [self.kill, self.join] * self.random.randint(0, 1)
        return found

    def change_connection(self, node, *, up=None):
        is_up = not node.is_connected if up is None else up
        if is_up == node.is_connected:
            return
        node.is_connected = is_up
        if is_up:
            node.note(node.ownership.connected())
            return
        for number in range(self.count):
            self.unsubscribe(node, number)
        node.todo = deque(each for each in node.todo if each.verb not in ("subscribe", "close_channel"))
        node.note(node.ownership.connection_lost())

    def kill(self):
        if len(self.live) > 1:
            node = self.random.choice(self.live)
            node.is_alive = False
            for number in range(self.count):
                self.unsubscribe(node, number)

    def join(self):
        if len(self.nodes) < 6:
            self.nodes.append(Node(self, f"n{len(self.nodes)}"))

    def step(self):
        self.random.choice(self.choices())()

    def settle(self):
        """Nothing fails any more, and all that is to happen happens."""
        self.is_calm = True
        for node in self.live:
            self.change_connection(node, up=True)
        for _ in range(40 * self.count):
            for node in self.live:
                node.note(node.ownership.look(self.places))
                node.find_fenced()
                while node.todo or node.events or node.ending:
                    if node.todo:
                        node.do_next()
                    elif node.events:
                        node.hear_next(self.random)
                    else:
                        node.end_turns(min(node.ending))

    def check(self):
        """Each partition is served once, by the node that is to have it."""
        for number, place in enumerate(self.places):
            serving = [node for node in self.live if node.ownership.serves(number)]
            assert [node.name for node in serving] == [place.owner]
            (owner,) = serving
            assert self.owner[number] == owner.name
            assert owner.epochs[number] == owner.turns[number] == self.epoch[number]
            assert self.recovered[number, self.epoch[number]] == 1
            assert (number, self.epoch[number]) in owner.served
            assert {node.name for node in self.consumers[number]} == {place.owner, place.standby} - {""}
            assert self.consumers[number][0] is owner
            assert not any(number in node.turns for node in self.live if node is not owner)


@hypothesis.given(
    random=strategies.randoms(use_true_random=False),
    count=strategies.integers(1, 3),
    nodes=strategies.integers(1, 3),
    steps=strategies.integers(0, 250),
)
@hypothesis.settings(max_examples=300)
def test_whatever_happens_each_partition_ends_with_its_owner(random, count, nodes, steps):
    """Nodes that come and die, connections that are lost, databases that do not answer, words that come late."""
    world = World(random, count, nodes)
    for _ in range(steps):
        world.step()
    world.settle()
    world.check()


PLACES = (Placement("a", "b"), Placement("b", "a"), Placement("b", "c"))


def test_a_partition_goes_from_one_node_to_the_next():
    """The way of one that is taken, drained and given back."""
    mine = Ownership("a", 3)
    assert mine.look(PLACES) == [Do("subscribe", 0), Do("subscribe", 1)]
    assert mine.delivered(1) == [Do("take", 1)]
    assert mine.taken(1, 1, was_clean=False) == [Do("recover", 1, 1, was_clean=False)]
    assert mine.counted(1, 1) == [Do("serve", 1, 1, was_clean=False)]
    assert mine.serves(1)
    assert mine.look(PLACES) == []
    assert mine.look(PLACES) == [Do("drain", 1, 1)]
    assert not mine.serves(1)
    assert mine.turns_ended(1, 1) == [Do("give_back", 1, 1)]
    assert mine.look(PLACES) == []  # the channel that is open is closed first
    assert mine.given_back(1, 1) == [Do("close_channel", 1)]
    assert mine.look(PLACES) == [Do("subscribe", 1)]
    assert mine.given_back(1, 1) == []


def test_turns_go_on_while_the_broker_is_away():
    """If nobody had the partition in between, they never hear of it."""
    mine = Ownership("a", 3)
    mine.look(PLACES)
    mine.delivered(0)
    mine.taken(0, 1, was_clean=True)
    assert mine.counted(0, 1) == [Do("serve", 0, 1)]
    assert mine.connection_lost() == []
    assert (mine.state(0), mine.state(1)) == (PartitionState.DOUBTFUL, PartitionState.AWAY)
    assert mine.connected() == [Do("subscribe", 0)]
    assert mine.delivered(0) == [Do("take", 0)]
    assert mine.kept(0) == [Do("serve", 0, 1)]
    assert mine.serves(0)


def test_what_is_unfinished_is_counted_before_requests_are_begun():
    """Also where the connection was lost while a partition was taken, whose epoch is kept when it comes back."""
    mine = Ownership("a", 3)
    mine.look(PLACES)
    mine.delivered(0)
    mine.connection_lost()
    assert mine.taken(0, 1, was_clean=False) == []
    mine.connected()
    mine.look(PLACES)
    assert mine.delivered(0) == [Do("take", 0)]
    assert mine.kept(0) == [Do("recover", 0, 1, was_clean=False)]
    assert mine.counted(0, 1) == [Do("serve", 0, 1, was_clean=False)]


@pytest.mark.parametrize("is_counted_first", [True, False])
def test_a_connection_that_is_lost_while_what_is_unfinished_is_counted_begins_no_request_early(
    is_counted_first,
):
    """However often it comes back meanwhile; and that the last owner has died is known when the first one is begun."""
    mine = Ownership("a", 3)
    mine.look(PLACES)
    mine.delivered(0)
    assert mine.taken(0, 1, was_clean=False) == [Do("recover", 0, 1, was_clean=False)]
    mine.connection_lost()
    counted = mine.counted(0, 1) if is_counted_first else []
    mine.connected()
    mine.delivered(0)
    kept = mine.kept(0)
    assert counted == []
    assert (kept or mine.counted(0, 1)) == [Do("serve", 0, 1, was_clean=False)]
    assert bool(kept) == is_counted_first
    assert mine.counted(0, 0) == []


def test_an_owner_that_comes_back_waits_for_the_turns_that_were_cut():
    """They may still write nothing, but do something outside."""
    mine = Ownership("a", 3)
    mine.look(PLACES)
    mine.delivered(0)
    mine.taken(0, 1, was_clean=True)
    assert mine.fenced(0, 1) == [Do("evict", 0, 1), Do("close_channel", 0)]
    mine.look(PLACES)
    assert mine.delivered(0) == []
    assert mine.turns_ended(0, 1) == [Do("take", 0)]
    assert mine.taken(0, 3, was_clean=False) == [Do("recover", 0, 3, was_clean=False)]


def test_an_epoch_that_is_given_once_more_is_taken():
    """By a database that was put back to an earlier state; an end that is told before its beginning is one, all the same."""
    mine = Ownership("a", 3)
    mine.look(PLACES)
    mine.delivered(0)
    mine.taken(0, 1, was_clean=True)
    mine.fenced(0, 1)
    mine.look(PLACES)
    mine.delivered(0)
    assert mine.turns_ended(0, 1) == [Do("take", 0)]
    assert mine.taken(0, 1, was_clean=False) == [Do("recover", 0, 1, was_clean=False)]
    mine.fenced(0, 2)
    mine.look(PLACES)
    mine.delivered(0)
    assert mine.turns_ended(0, 1) == [Do("take", 0)]
    assert mine.taken(0, 2, was_clean=False) == [Do("close_channel", 0)]


def test_a_partition_does_not_move_before_what_its_dead_owner_left_is_counted():
    """It would be given back as if nobody had died."""
    mine = Ownership("a", 3)
    mine.look(PLACES)
    mine.delivered(1)
    mine.taken(1, 1, was_clean=False)
    assert [mine.look(PLACES) for _ in range(4)] == [[]] * 4
    mine.counted(1, 1)
    assert [mine.look(PLACES) for _ in range(2)] == [[], [Do("drain", 1, 1)]]


def test_a_node_that_ends_gives_nothing_back_whose_dead_owner_nobody_has_counted():
    """The next one counts; here it begins nothing more, though that ends later."""
    mine = Ownership("a", 3)
    mine.look(PLACES)
    for number, was_clean in enumerate((False, True)):
        mine.delivered(number)
        mine.taken(number, 1, was_clean=was_clean)
    assert mine.has_sessions(0, 1)
    assert mine.leave_all() == [Do("close_channel", 0), Do("drain", 1, 1)]
    assert mine.state(0) is PartitionState.AWAY
    assert mine.counted(0, 1) == []
    assert not mine.has_sessions(0, 1)
    assert mine.turns_ended(1, 1) == [Do("give_back", 1, 1)]


def test_whether_the_last_owner_left_it_clean_is_told_once_in_an_epoch():
    """By the first time that requests are dealt with: those that come again after that are of connections that were lost."""
    mine = Ownership("a", 3)
    mine.look(PLACES)
    mine.delivered(0)
    mine.taken(0, 1, was_clean=False)
    assert mine.counted(0, 1) == [Do("serve", 0, 1, was_clean=False)]
    mine.connection_lost()
    mine.connected()
    mine.delivered(0)
    assert mine.kept(0) == [Do("serve", 0, 1)]
    mine.fenced(0, 1)
    mine.turns_ended(0, 1)
    mine.look(PLACES)
    mine.delivered(0)
    mine.taken(0, 3, was_clean=False)
    assert mine.counted(0, 3) == [Do("serve", 0, 3, was_clean=False)]


def test_a_node_that_ends_lets_everything_go():
    """What it has after its turns, what it waits for at once."""
    mine = Ownership("a", 3)
    mine.look(PLACES)
    mine.delivered(0)
    mine.taken(0, 1, was_clean=True)
    assert mine.leave_all() == [Do("drain", 0, 1), Do("close_channel", 1)]
    assert mine.turns_ended(0, 1) == [Do("give_back", 0, 1)]
    assert mine.state(0) is PartitionState.LEAVING
    assert mine.given_back(0, 1) == [Do("close_channel", 0)]


def test_who_lost_a_partition_while_it_was_given_back_waits_for_it_as_before():
    """What is told of the end of an epoch afterwards closes nothing."""
    mine = Ownership("a", 3)
    mine.look(PLACES)
    mine.delivered(0)
    mine.taken(0, 1, was_clean=True)
    mine.leave_all()
    mine.turns_ended(0, 1)
    assert mine.fenced(0, 1) == [Do("close_channel", 0)]
    assert mine.look(PLACES[:1]) == [Do("subscribe", 0)]
    assert mine.given_back(0, 1) == []


def test_few_partitions_move_at_a_time():
    """The others are served meanwhile."""
    mine = Ownership("a", 64)
    mine.look([Placement("a", "")] * 64)
    for number in range(64):
        mine.delivered(number)
        mine.taken(number, 1, was_clean=True)
    others = [Placement("b", "a")] * 64
    mine.look(others)
    assert [each.verb for each in mine.look(others)] == ["drain"] * 8
    assert mine.look(others) == []
