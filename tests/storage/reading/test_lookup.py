"""Record boundaries: by offset, by sequence and by time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest

from filechannel import ChannelOptions, CorruptRecordError
from filechannel._format.layout import INDEX_BYTES
from filechannel._offset import LogPosition, Offset
from filechannel._storage.reading import lookup
from filechannel._storage.segments.segment import Segment
from filechannel._storage.segments.segment_index import index_path
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from tests.storage.background import Background
from tests.storage.channels import Message, opened, payloads_of, read_all
from tests.storage.clocks import Clock

MESSAGES = 300
_LOOKS = ("covering", "following", "first_from")


def _send_all(store: Store) -> list[Message]:
    for number in range(MESSAGES):
        store.log.append([b"%d" % number + b"." * (number * 7 % 900)])
    return read_all(store)


@pytest.fixture(params=[4096, 1 << 20], ids=["many segments", "one segment"])
def store(path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    """A channel with messages of many sizes."""
    with opened(path, ChannelOptions(segment_size=request.param)) as store:
        yield store


def test_an_empty_channel_begins_where_it_ends(store: Store) -> None:
    """The oldest and the newest position of a new channel are the same."""
    assert store.lookup.earliest() == store.lookup.latest()
    assert store.lookup.earliest().offset == store.lookup.earliest().sequence == 0


def _after_look(store: Store, monkeypatch: pytest.MonkeyPatch, number: int, event: Callable[[], object]) -> None:
    """Let something happen between one look at which segments there are and the next; the looks count from 0."""
    looks = count()

    def hooked(look: Callable[[int], Offset | None]) -> Callable[[int], Offset | None]:
        def look_and_wait(offset: int) -> Offset | None:
            found = look(offset)
            if next(looks) == number:
                event()
            return found

        return look_and_wait

    for name in _LOOKS:
        monkeypatch.setattr(store.segments, name, hooked(getattr(store.segments, name)))


@pytest.mark.parametrize("look", range(3))
@pytest.mark.parametrize("find", ["earliest", "end"])
def test_messages_may_be_sent_during_a_lookup(
    store: Store, monkeypatch: pytest.MonkeyPatch, find: str, look: int
) -> None:
    """The position of the first message is found as such, though it and many more are sent in this moment."""
    _after_look(store, monkeypatch, look, lambda: _send_all(store))
    found = store.lookup.earliest() if find == "earliest" else store.lookup.at_or_after(0)
    assert (found.offset, found.sequence) == (0, 0)


def test_an_age_is_that_of_the_first_message_sent_during_the_lookup(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a record is that of its own segment, not of a later one that was created with it."""
    with opened(path) as store:
        _after_look(store, monkeypatch, 0, lambda: _send_all(store))
        first = store.lookup.latest().offset
        assert store.lookup.written_at(first, {}, 0) == store.lookup.written_at(first, {}, 0) != 0


class _Meanwhile(Files):
    """Lets something happen once a file is open, before it is read."""

    event: Callable[[], object] = staticmethod(lambda: None)

    def read_at(self, descriptor: int, size: int, position: int) -> bytes:
        event, self.event = self.event, lambda: None
        event()
        return super().read_at(descriptor, size, position)


def test_an_empty_segment_may_be_replaced_while_it_is_opened(path: Path) -> None:
    """The oldest position is that of a message that is larger than a segment, and not of what comes after it."""
    files = _Meanwhile()
    with opened(path) as store, opened(path, readonly=True, files=files) as other:
        store.log.append([b"gone"])
        store.purge()
        first = store.lookup.latest()
        files.event = lambda: store.log.append([bytes(10_000), *[bytes(1000)] * 10])
        assert other.lookup.earliest() == first
        assert store.lookup.latest().sequence == first.sequence + 11


def test_every_offset_is_found_with_its_sequence(store: Store) -> None:
    """Each record's offset is found with it, and after the last one is the end."""
    for message in _send_all(store):
        place = store.lookup.at(message.offset)
        assert (place.offset, place.sequence) == (message.offset, message.sequence)
        assert read_all(store, start=place)[0] == message
    assert store.lookup.at(store.lookup.latest().offset).sequence == MESSAGES


def test_every_sequence_is_found_with_its_offset(store: Store) -> None:
    """Each sequence is found with its message, and the one after the last is the end."""
    for message in _send_all(store):
        place = store.lookup.numbered(message.sequence)
        assert (place.offset, place.sequence) == (message.offset, message.sequence)
    assert store.lookup.numbered(MESSAGES).offset == store.lookup.latest().offset


def test_an_offset_inside_a_record_is_refused(store: Store) -> None:
    """A message does not begin in the middle of another."""
    messages = _send_all(store)
    boundaries = {message.offset for message in messages}
    for offset in range(messages[5].offset, messages[9].offset):
        if offset not in boundaries:
            with pytest.raises(ValueError, match="no record begins"):
                store.lookup.at(offset)
    with pytest.raises(ValueError, match="no record begins"):
        store.lookup.at(store.lookup.latest().offset - 1)


@pytest.mark.parametrize("beyond", [1, 100, 1 << 50])
def test_an_offset_behind_the_end_is_refused(store: Store, beyond: int) -> None:
    """The error for an offset beyond the end names the stored ones."""
    _send_all(store)
    with pytest.raises(ValueError, match="is not in the channel, which has 0 to"):
        store.lookup.at(store.lookup.latest().offset + beyond)


@pytest.mark.parametrize("sequence", [-1, MESSAGES + 1])
def test_a_sequence_that_is_not_stored_is_refused(store: Store, sequence: int) -> None:
    """The error for a sequence that is not stored names the stored ones."""
    _send_all(store)
    with pytest.raises(ValueError, match="0 to 299 are"):
        store.lookup.numbered(sequence)


def test_a_lookup_does_not_need_an_index(store: Store) -> None:
    """Without an index everything is found, only slower."""
    messages = _send_all(store)
    store.log.store_index_entries()
    store.lookup._store_index_entries = None
    for begin in store.segments.begins:
        index_path(store.segments.path(begin)).unlink(missing_ok=True)
    for message in messages[::17]:
        assert store.lookup.at(message.offset).sequence == message.sequence
        assert store.lookup.numbered(message.sequence).offset == message.offset


def test_what_was_purged_is_not_found(store: Store) -> None:
    """After a purge the channel begins at its end, and sequences continue."""
    messages = _send_all(store)
    store.purge()
    assert store.lookup.earliest().offset == store.lookup.latest().offset
    assert store.lookup.earliest().sequence == MESSAGES
    with pytest.raises(ValueError, match="is not in the channel"):
        store.lookup.at(messages[3].offset)
    with pytest.raises(ValueError, match=f"3 is not stored: the channel is empty, and the next sequence is {MESSAGES}"):
        store.lookup.numbered(3)
    store.log.append([b"after"])
    assert store.lookup.numbered(MESSAGES).offset == store.lookup.earliest().offset


def test_control_records_are_not_counted(store: Store) -> None:
    """The seal has an offset but no number."""
    store.log.append([b"only"])
    store.seal()
    assert store.lookup.latest().sequence == 1
    assert store.lookup.numbered(1).offset == store.lookup.latest().offset


def test_unused_offsets_are_refused(path: Path) -> None:
    """Offsets in an offset gap are not a position, except the very first, which is where the log ended."""
    with opened(path) as store:
        store.log.append([b"before"])
        end = store.control.write_offset
        with store.log.writing():
            store.log.abandon_active()
        store.log.append([b"after"])
        after = read_all(store)[1]
        assert store.lookup.at(end).sequence == 1
        assert store.lookup.at(end).offset == after.offset
        with pytest.raises(ValueError, match="it lies in an offset gap"):
            store.lookup.at(end + 1)
        assert store.lookup.numbered(1).offset == after.offset


def test_damage_on_the_way_is_not_a_wrong_offset(path: Path) -> None:
    """If the records before an offset are damaged the error says so, with their offset."""
    with opened(path, ChannelOptions(segment_size=1 << 20)) as store:
        messages = _send_all(store)
        segment = store.segments.get(store.segments.begins[0])
        segment.map[segment.position(messages[10].offset) + 9] ^= 1
        for seek in (lambda: store.lookup.at(messages[20].offset), lambda: store.lookup.numbered(20)):
            with pytest.raises(CorruptRecordError, match="checksum mismatch") as caught:
                seek()
            assert caught.value.offset == messages[10].offset


@pytest.mark.parametrize("kind", ["offset", "number", "time"])
def test_what_is_reclaimed_during_a_lookup_is_not_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Another process may drop the oldest segments during a lookup: then they are not stored."""
    with opened(path) as store:
        sent, began = _send_all(store), datetime.now(UTC)
        begins = store.segments.begins

        def drop_and_find(look: Callable[[int], Offset | None], offset: int) -> Offset | None:
            monkeypatch.undo()
            for begin in begins[:-2]:
                store.segments.path(begin).unlink()
            store.control.oldest_offset = begins[-2]
            store.segments._mapped.clear()
            return look(offset)

        for name in _LOOKS:
            monkeypatch.setattr(store.segments, name, partial(drop_and_find, getattr(store.segments, name)))
        if kind == "time":
            assert store.lookup.since(began - timedelta(hours=1)).offset == begins[-2]
            return
        with pytest.raises(ValueError, match="is not"):
            store.lookup.at(sent[1].offset) if kind == "offset" else store.lookup.numbered(1)


@pytest.mark.parametrize("left", [0, 2], ids=["all of them", "the oldest"])
def test_a_sequence_whose_segment_is_retired_during_the_lookup_is_not_stored(
    path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """A lookup that has seen that a message is stored, and finds its segment retired, is repeated."""
    with opened(path) as store:
        _send_all(store)
        latest = store.lookup.latest

        def look_and_drop() -> LogPosition:
            monkeypatch.undo()
            found = latest()
            store.control.oldest_offset = store.segments.begins[-left] if left else found.offset
            store.segments.remove_before(store.control.oldest_offset)
            return found

        monkeypatch.setattr(store.lookup, "latest", look_and_drop)
        with pytest.raises(ValueError, match="is not stored"):
            store.lookup.numbered(1)
        assert len(store.segments.begins) == left


# Time


def test_a_time_is_a_position_before_everything_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing sent at or after the time is before the position, and it is at most about a second early."""
    clock = Clock.install(monkeypatch)
    sent: list[int] = []
    with opened(path) as store:
        for _ in range(MESSAGES):
            sent.append(clock.now)
            store.log.append([b"." * 300])
            store.log.store_index_entries()
            clock.pass_seconds(0.13)
        for number in range(0, MESSAGES, 7):
            place = store.lookup.since(_moment(sent[number]))
            assert place.sequence <= number
            assert sent[number] - sent[place.sequence] < 3 * 10**9


@pytest.mark.parametrize("seed", range(5))
def test_a_clock_that_is_set_back_hides_nothing(path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Nothing sent at or after the time is before the position; when the clock has caught up it is
    as exact as before.
    """
    clock, random, sent = Clock.install(monkeypatch), Random(seed), list[int]()
    with opened(path) as store:
        for number in range(MESSAGES):
            sent.append(clock.now)
            store.log.append([b"." * random.randrange(900)])
            store.log.store_index_entries()
            is_set_back = random.random() < 0.05 and number < MESSAGES - 120
            clock.pass_seconds(-random.uniform(1, 50) if is_set_back else random.uniform(0.1, 2))
        for moment in sent:
            first = next(number for number, when in enumerate(sent) if when >= moment)
            assert store.lookup.since(_moment(moment)).sequence <= first
        last = store.lookup.since(_moment(sent[-1])).sequence
        assert sent[-1] - sent[last] < 6 * 10**9


def _moment(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)


def test_until_a_time_nothing_older_is_left_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing sent before the time is after the position, and it is at most about a second late."""
    clock = Clock.install(monkeypatch)
    with opened(path) as store:
        assert store.lookup.until(_moment(clock.now)).offset == 0
        sent: list[int] = []
        for number in range(60):
            sent.append(clock.now)
            store.log.append([b"%d" % number])
            store.log.store_index_entries()
            clock.pass_seconds(0.13)
        for number in range(60):
            place = store.lookup.until(_moment(sent[number]))
            assert number <= place.sequence <= number + 9
        assert store.lookup.until(_moment(clock.now)).sequence == 60
        assert store.lookup.until(_moment(sent[0] - 10**9)).sequence == 0
        with pytest.raises(ValueError, match="has no time zone"):
            store.lookup.until(_moment(clock.now).replace(tzinfo=None))


def test_a_time_before_everything_is_the_beginning(store: Store) -> None:
    """A lookup before the first message returns all there is."""
    _send_all(store)
    assert store.lookup.since(datetime(1970, 1, 2, tzinfo=UTC)) == store.lookup.earliest()


def test_a_time_in_the_future_skips_nothing(store: Store) -> None:
    """The position is not beyond the end, so whatever is sent next is received."""
    _send_all(store)
    place = store.lookup.since(datetime.now(UTC) + timedelta(days=1))
    assert place.sequence <= MESSAGES


def test_a_moment_after_a_purge_is_not_before_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was purged does not come back by time."""
    clock = Clock.install(monkeypatch)
    with opened(path) as store:
        start = clock.now
        store.log.append([b"old"])
        clock.pass_seconds(10)
        store.purge()
        store.log.append([b"new"])
        assert read_all(store, start=store.lookup.since(_moment(start)))[0].payload == b"new"


class Nowhere(tzinfo):
    """A time zone that does not say where it is."""

    def utcoffset(self, _: datetime | None, /) -> None:
        """Return nothing, which is allowed."""


def test_a_time_without_a_time_zone_is_refused(store: Store) -> None:
    """A time without a time zone is refused as ambiguous."""
    with pytest.raises(ValueError, match="has no time zone"):
        store.lookup.since(datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="has no time zone"):
        store.lookup.since(datetime(2030, 1, 1, tzinfo=Nowhere()))


# Cost


class Counting(Files):
    """Counts what is opened and read."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, path: Path, *, create: bool = False, writable: bool = True, mode: int = 0o600) -> int:
        """Open a file, and remember which."""
        self.opened.append(path.name)
        return super().open(path, create=create, writable=writable, mode=mode)

    def read(self, path: Path, most: int) -> bytes:
        """Read a file, and remember which."""
        self.opened.append(path.name)
        return super().read(path, most)

    def take(self) -> tuple[int, int]:
        """Return how many segments and how many indexes were looked at since the last time."""
        opened, self.opened = self.opened, []
        return sum(name.endswith(".seg") for name in opened), sum(name.endswith(".idx") for name in opened)


SEGMENTS_OF_HISTORY = 200
FEW = 10
"""More than halving so many segments takes."""


@pytest.fixture
def long_history(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, Counting, list[int]]]:
    """A channel with many segments, freshly opened, and when each of its messages was sent."""
    clock, sent = Clock.install(monkeypatch), list[int]()
    with opened(path) as store:
        while len(store.segments.begins) < SEGMENTS_OF_HISTORY:
            sent.append(clock.now)
            store.log.append([b"." * 900])
            store.log.store_index_entries()
            clock.pass_seconds(2)
    files = Counting()
    with opened(path, files=files, create=False) as store:
        files.take()
        yield store, files, sent


def test_a_seek_by_time_looks_at_few_segments(
    long_history: tuple[Store, Counting, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seek by time halves the segments and reads one index and no record; repeated, it uses the cache."""
    store, files, sent = long_history
    monkeypatch.setattr(lookup, "_read", _no_record_is_read)
    for number in (len(sent) // 2, 3, len(sent) - 1, len(sent) // 3):
        found = store.lookup.since(_moment(sent[number]))
        assert 0 <= number - found.sequence <= 1
        segments, indexes = files.take()
        assert segments <= FEW
        assert indexes <= 1
        store.lookup.since(_moment(sent[number]))
        assert files.take() == (0, indexes)


def _no_record_is_read(*_: object) -> tuple[bool, int]:
    raise AssertionError


def test_a_seek_by_number_looks_at_few_segments(long_history: tuple[Store, Counting, list[int]]) -> None:
    """A seek by sequence halves the segments and reads one index."""
    store, files, sent = long_history
    for number in (len(sent) // 2, 3, len(sent) - 1, len(sent) // 3):
        assert store.lookup.numbered(number).sequence == number
        segments, indexes = files.take()
        assert segments <= FEW + 1  # with the oldest, whose sequence is the first there is
        assert indexes == 1


def test_a_seek_by_offset_looks_at_one_segment(long_history: tuple[Store, Counting, list[int]]) -> None:
    """The name of a segment says which offsets it has."""
    store, files, sent = long_history
    offsets = [store.lookup.numbered(number).offset for number in (len(sent) // 2, 3, len(sent) // 3)]
    for offset in offsets:
        files.take()
        assert store.lookup.at(offset).offset == offset
        segments, indexes = files.take()
        assert segments <= 1
        assert indexes == 1


def test_a_seek_walks_only_from_one_mark_to_the_next(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By offset and by number, no more records are read than lie between two entries of the index."""
    walked = list[int]()
    read = lookup._read

    def counted(segment: Segment, offset: int) -> tuple[bool, int]:
        walked.append(offset)
        return read(segment, offset)

    monkeypatch.setattr(lookup, "_read", counted)
    with opened(path, ChannelOptions(segment_size=1 << 22)) as store:
        for _ in range(300):
            store.log.append([b"." * 1000] * 10)
        for number in (7, 1500, 2990):
            for seek in (lambda n=number: store.lookup.numbered(n), lambda n=number: store.lookup.at(n * 1008)):
                walked.clear()
                assert seek().offset == number * 1008
                assert len(walked) <= INDEX_BYTES // 1008 + 2


def test_cached_headers_are_dropped_with_their_segments(path: Path) -> None:
    """Another file under the same name is read again, and a damaged one is reported."""
    with opened(path, mapped=2) as store:
        _send_all(store)
        begins = store.segments.begins
        header = store.segments.header(begins[3])
        assert header.begin == begins[3]
        assert header is store.segments.header(begins[3])
        store.segments.path(begins[3]).write_bytes(b"nothing")
        store.segments.scan()
        with pytest.raises(CorruptRecordError, match="shorter than a segment header"):
            store.segments.header(begins[3])
        store.segments.path(begins[3]).unlink()
        with pytest.raises(CorruptRecordError, match="missing"):
            store.segments.header(begins[3])
        store.segments.path(begins[3]).mkdir()
        with pytest.raises(CorruptRecordError, match="directory"):
            store.segments.header(begins[3])


# The beginning


@pytest.mark.parametrize("flushed", [False, True])
def test_damage_at_the_beginning_is_raised_by_reads(path: Path, background: Background, flushed: bool) -> None:
    """The oldest position is known although its segment is unreadable; reading it raises, or skips to what is left."""
    with opened(path) as store:
        for number in range(20):
            store.log.append([b"%d" % number + b"." * 1000])
        first, second = store.segments.begins[:2]
        if flushed:
            background.run()
    store.segments.path(first).write_bytes(b"nothing")
    with opened(path) as store:
        assert store.lookup.earliest().offset == 0
        with pytest.raises(CorruptRecordError, match="shorter than a segment header"):
            read_all(store)
        left = read_all(store, skip=True)
        assert left[0].offset == second
        assert [int(message.payload.split(b".")[0]) for message in left] == [message.sequence for message in left]
        assert payloads_of(store, skip=True)[-1].startswith(b"19.")
