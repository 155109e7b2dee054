"""A channel that lives, is killed or loses power, and lives on; and what must hold each time it comes back.

A `Life` drives one store at random. It knows what it has sent, what it was promised, and where every message was seen.
At random calls to the operating system it takes an image of the files together with the story so far. The next life
begins with such an image, and first of all compares what it finds with the story.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from filechannel import Capacity, ChannelOptions, Compression, DataExpiredError, DiskFullError, Durability
from filechannel._errors import Busy
from filechannel._format import NOTHING, find_record
from filechannel._format.layout import (
    CONTROL_IDENTITY,
    CONTROL_RECORD,
    LENGTH_MASK,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
)
from filechannel._maintenance.background.compress_segment import SegmentCompressor
from filechannel._maintenance.background.plan_reclaim import reclaim_after
from filechannel._offset import LogPosition, Offset
from filechannel._storage.control.control_file import CONTROL
from filechannel._storage.manifest import MANIFEST
from filechannel._storage.recovery import recover
from filechannel._storage.recovery.quarantine import QUARANTINED
from filechannel._storage.segments.compressed_segment import CompressedSegment, compressed_begin_of
from filechannel._storage.segments.segment import Segment, begin_of
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import QUARANTINE, Files
from tests.storage.background import Background
from tests.storage.channels import Message, open_store, read_all, reader_of, take_all
from tests.storage.compressing import compress_segment
from tests.storage.power import Directory, Image, PowerFiles
from tests.storage.reclaiming import reclaim

CONSUMER = "consumer"
LITTLE = Capacity(max_messages=16, on_full="drop_oldest")
"""As much as the largest batch and a little more."""


def _release_processes(store: Store, files: Files) -> None:
    """Release slot and FIFO as a process does that dies: the FIFO stays."""
    own = store.wake_fifos.take_own()
    if own is not None:
        files.close(own)
    store._membership.close()


@dataclass
class Story:
    """What happened to a channel so far."""

    batches: list[list[bytes]] = field(default_factory=list)
    """What was sent, in order; the last one may still be on its way."""
    visible: int = 0
    """How many batches must be there if only the process dies."""
    promised: int = 0
    """How many must be there whatever happens."""
    purged: int = 0
    """How many messages were removed by a purge."""
    purging: int = 0
    """How many are being removed by a purge."""
    free: int = 0
    """How many may have been removed because they were consumed, or dropped."""
    seen: dict[int, bytes] = field(default_factory=dict)
    """What readers saw, by offset: no reader may ever see something else there."""
    consumed: int = 0
    """How many messages the consumer has taken."""
    consumed_promised: int | None = None
    """How many of those are on disk; None if the consumer itself may be gone."""
    sealed: bool = False
    seal_promised: bool = False

    def copy(self) -> Story:
        """Return a copy that does not change any more."""
        return replace(self, batches=list(self.batches), seen=dict(self.seen))

    def messages(self, first: int, last: int) -> list[bytes]:
        """Return the messages of some batches."""
        return [payload for batch in self.batches[first:last] for payload in batch]

    def count(self, batches: int) -> int:
        """Return how many messages the first batches have."""
        return sum(map(len, self.batches[:batches]))

    def see(self, message: Message) -> None:
        """A receiver saw a message."""
        assert self.seen.setdefault(message.offset, message.payload) == message.payload, "an offset was used twice"


@dataclass(frozen=True)
class Moment:
    """An image, and the story up to it."""

    image: Image
    story: Story
    power_was_cut: bool = False


class Life:
    """One process's time with a channel."""

    def __init__(
        self,
        root: Path,
        random: Random,
        background: Background,
        *,
        story: Story | None = None,
        tree: Directory | None = None,
        chance: float = 0.05,
        thrifty: bool = False,
        dropping: bool = False,
        mounted: int = 1,
    ) -> None:
        """*mounted* is the id of the mount.

        *thrifty*: nothing is kept for long, so that most messages are written into recycled files.

        *dropping*: the capacity is small, and the oldest messages are dropped, whichever consumer has not read them.
        """
        self.moments: list[Moment] = []
        self.story = story or Story()
        self._random = random
        self._background = background
        self._durability = random.choice((Durability.OS, Durability.FSYNC))
        self._chance = chance
        self._thrifty = thrifty
        self._dropping = dropping
        self._path = root / "channel"
        self._full = False
        self._files = PowerFiles(root, tree)
        self._files.mounted = mounted
        self._files.on_call = self._on_call
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The channel, opened."""
        if self._store is None:
            capacity = LITTLE if self._dropping else None
            options = ChannelOptions(segment_size=4096, durability=self._durability, capacity=capacity)
            self._store = open_store(self._path, options, files=self._files, mapped=2)
            self._durability = self._store.manifest.options.durability
        return self._store

    @property
    def _fsync(self) -> bool:
        return self._durability == Durability.FSYNC

    def _on_call(self, name: str) -> None:
        if self._random.random() < self._chance:
            self.remember()
        if self._full and name == "allocate":
            raise DiskFullError(self._path, 1)

    def remember(self) -> None:
        """Take an image."""
        self.moments.append(Moment(self._files.image(), self.story.copy()))

    # What happens in a life

    def spend(self) -> None:
        """Do some things, and perhaps come to an orderly end."""
        for _ in range(self._random.randint(3, 25)):
            self.act()
        self.remember()
        if self._random.random() < 0.2:
            self.store.close()
            self._store = None
            self.remember()

    def act(self) -> None:
        """Do something."""
        actions = [self._send] * 8 + [self._consume] * 3 + [self._background.run] * 2
        actions += [self._flush, self._reclaim, self._compress]
        if self._random.random() < 0.04:
            actions = [self._purge, self._seal, self._reconfigure, self._fail_to_send]
        elif self._thrifty:
            actions += [self._retire_oldest] * 4
        self._random.choice(actions)()
        self._files.observe()

    def _payload(self) -> bytes:
        size = self._random.choice((0, 3, 20, 100, 100, 300, 1000, 1500, 5000))
        name = b"%x" % self._random.getrandbits(64)
        return name + bytes(self._random.choices(b"\0ab\xff", k=1)) * size

    def _send(self) -> None:
        if self.story.sealed:
            return
        for _ in range(self._random.choice((1, 1, 2))):
            batch = [self._payload() for _ in range(self._random.choice((1, 1, 1, 2, 5, 12)))]
            self._begin_to_send(batch)
            offset: int = self.store.log.append(batch)
            self._look_what_was_dropped()
            sent = []
            for payload in batch:
                sent.append(Message(payload, offset, 0))
                offset += RECORD_HEADER_SIZE + len(payload)
            if not self._fsync:
                self._saw(sent)
        if self._fsync:
            self.store.flusher.commit()
            self._saw(read_all(self.store))
            self.story.promised = len(self.story.batches)

    def _begin_to_send(self, batch: list[bytes]) -> None:
        if self._dropping:
            self.story.free = self.story.count(len(self.story.batches))
        self.story.batches.append(batch)

    def _look_what_was_dropped(self) -> None:
        if self._dropping:
            self.story.free = self.store.lookup.earliest().sequence
            assert self.store.backlog.used().messages <= (LITTLE.max_messages or 0), "more than there is room for"

    def _saw(self, messages: list[Message]) -> None:
        for message in messages:
            self.story.see(message)
        self.story.visible = len(self.story.batches)

    def _fail_to_send(self) -> None:
        """A batch that needs more capacity than there is."""
        if self.story.sealed:
            return
        batch = [self._payload() for _ in range(8)]
        self._begin_to_send(batch)
        self._full = True
        try:
            self.store.log.append(batch)
        except DiskFullError:
            del self.story.batches[-1]
        else:
            if not self._fsync:
                self._saw(read_all(self.store))
        finally:
            self._full = False
        self._look_what_was_dropped()

    def _consume(self) -> None:
        cursor = self.store.cursors.open(CONSUMER)
        reader = reader_of(self.store, cursor)
        position = cursor.position
        place = self.store.lookup.earliest() if position is None else position.log_position
        reader.move(place)
        self.story.consumed = place.sequence
        for _ in range(self._random.randint(0, 10)):
            try:
                if reader.native.take() is NOTHING:
                    break
                self.story.consumed += 1
            except DataExpiredError as error:
                self.story.consumed += error.missed
                assert self._dropping
                assert self.story.consumed == self.store.lookup.earliest().sequence, "the error is wrong"
            if self._random.random() < 0.2:
                self._files.observe()
        if self._random.random() < 0.5:
            self._flush()
        reader.close()
        self.store.cursors.close(cursor)

    def _flush(self) -> None:
        self.store.flusher.flush()
        self._keep_promises()
        if CONSUMER in self.store.cursors.names():
            self.story.consumed_promised = self.story.consumed

    def _compress(self) -> None:
        """Compress what is finished and on disk, which no reader can notice."""
        block_size = self._random.choice((100, 1000, 4096))
        compressor = SegmentCompressor(self.store, Compression(method="gzip"), block_size=block_size)
        for candidate in list(compressor.candidates(Offset(0))):
            compress_segment(compressor, candidate)

    def _keep_promises(self) -> None:
        self.story.promised = self.story.visible = len(self.story.batches)
        self.story.seal_promised = self.story.sealed

    def _reclaim(self) -> None:
        """Remove what is consumed or was dropped; of the segment that is written to only sometimes."""
        if CONSUMER in self.store.cursors.names():
            self.story.free = max(self.story.free, self.story.consumed)
        with suppress(Busy), self.store.maintenance_lock.held():
            reclaim_after(self.store, self._random.choice((0.0, 1e9)))

    def _purge(self) -> None:
        self.story.purging = self.story.count(len(self.story.batches))
        self.store.purge()
        self._keep_promises()
        self.story.purged = self.story.consumed = self.story.purging
        if CONSUMER in self.store.cursors.names():
            self.story.consumed_promised = self.story.consumed

    def _retire_oldest(self) -> None:
        """Retire some of the oldest segments, whichever consumer needs them, of which the next one
        begins with a batch.
        """
        oldest = self.store.control.oldest_offset
        begins = [begin for begin in self.store.segments.begins if begin > oldest]
        between = [begin for begin in begins if self.store.log.dirty.is_between_batches(begin)]
        if not between:
            return
        begin = self._random.choice(between)
        sequence = self.store.segments.header(begin).first_sequence
        self.story.purging = sequence
        self.store.cursors.move_unowned(LogPosition(begin, sequence))
        reclaim(self.store, begin)
        self._keep_promises()
        self.story.purged = sequence
        self.story.consumed = max(self.story.consumed, sequence)
        if CONSUMER in self.store.cursors.names():
            self.story.consumed_promised = self.story.consumed

    def _seal(self) -> None:
        if self._random.random() < 0.2:
            self.story.sealed = True
            self.store.seal()
            self.store.flusher.flush()
            self._keep_promises()

    def _reconfigure(self) -> None:
        durability = self._random.choice((Durability.OS, Durability.FSYNC))
        options = replace(self.store.manifest.options, durability=durability)
        self.store.configure(lambda manifest: replace(manifest, options=options))
        if durability != self._durability:
            self._keep_promises()
            self._saw(read_all(self.store))
        self._durability = durability

    def end(self) -> None:
        """Release everything as the kernel does when a process dies: nothing is written any more."""
        self._background.forget()
        if self._store is not None:
            self._store.cursors.close_all()
            self._store.segments.close()
            _release_processes(self._store, self._files)
            self._files.close(self._store._directory.descriptor)
            self._store = None
        self._files.stop_watching()

    # What must hold at the beginning of a life

    def check(self, *, power_was_cut: bool, page_is_old: bool = False) -> None:
        """Compare what is there with what was promised; *page_is_old* if the control page is older than the rest."""
        story = self.story
        stored = _valid_records(self._path) if power_was_cut else {}
        life = None if power_was_cut or page_is_old else self._life()
        store = self.store
        assert life in (None, self._life()), "recovered without need"
        found = read_all(store)
        first, last = self._batches_found([message.payload for message in found])
        assert last >= (story.promised if power_was_cut else story.visible), "messages were lost"
        assert [message.sequence for message in found] == list(range(first, story.count(last)))
        for message in found:
            story.see(message)
        del story.batches[last:]
        self._check_consumer(first)
        self._check_seal()
        self._check_index(found)
        if power_was_cut:
            self._check_quarantine(stored, found)
            story.promised = last
        story.purged = story.purging = story.free = first
        story.visible = last
        for moment in self.moments:
            moment.story.visible = last
            moment.story.promised = story.promised
            if power_was_cut:  # a process that dies in recovery and starts again gets the same result
                del moment.story.batches[last:]

    def _life(self) -> int | None:
        """Return the life in the control file; None if it is of another boot or mount, or there is no channel yet."""
        if not (self._path / MANIFEST).exists():
            return None
        content = (self._path / CONTROL).read_bytes()
        _, _, life, _, boot, _, _, mount, _ = CONTROL_IDENTITY.unpack_from(content)
        return int(life) if (boot, mount) == (recover.boot_id(), self._files.mounted) else None

    def _batches_found(self, payloads: list[bytes]) -> tuple[int, int]:
        """Return the number of the first message that is there, and how many batches there were in all."""
        story, total = self.story, self.store.control.tail().sequence
        first = total - len(payloads)
        for last in range(len(story.batches) + 1):
            if story.count(last) == total and story.messages(0, last)[first:] == payloads:
                assert first in (story.purged, story.purging) or story.purged <= first <= story.free, "removed too much"
                return first, last
        expected = [[payload[:16] for payload in batch] for batch in story.batches]
        raise AssertionError(f"not whole batches: {[payload[:16] for payload in payloads]} of {expected}, {total=}")

    def _check_consumer(self, first: int) -> None:
        story = self.story
        cursor = self.store.cursors.open(CONSUMER)
        position = cursor.position
        if position is None:
            assert story.consumed_promised is None, "a consumer was forgotten"
            self.store.cursors.remove(cursor)
            story.consumed = 0
            return
        total = story.count(len(story.batches))
        # The name may have reached the disk and no position with it: then it starts at the oldest message.
        begins_anew = story.consumed_promised is None and position.sequence == first
        assert begins_anew or position.sequence <= max(story.consumed, story.purging), "a consumer has missed something"
        kept = position.sequence >= first or first == story.purging
        assert kept or self._dropping, "what it has not passed is gone"
        assert position.sequence >= min(story.consumed_promised or 0, total), "a consumer was set back"
        reader = reader_of(self.store)
        reader.move(LogPosition(max(position.offset, self.store.control.oldest_offset), position.sequence))
        rest = take_all(reader)
        rest_expected = story.messages(0, len(story.batches))[max(position.sequence, first) :]
        assert [message.payload for message in rest] == rest_expected
        reader.close()
        self.store.cursors.close(cursor)
        story.consumed = position.sequence

    def _check_seal(self) -> None:
        story, sealed = self.story, self.store.control.sealed
        assert sealed or not story.seal_promised, "the seal was broken"
        assert story.sealed or not sealed, "no process sealed it"
        story.sealed = sealed

    def _check_index(self, found: list[Message]) -> None:
        """Every mark is a record boundary, with its number."""
        boundaries = {message.offset: message.sequence for message in found}
        oldest = self.store.control.oldest_offset
        for begin in self.store.segments.begins:
            segment = self.store.segments.get(begin)
            for entry in self.store.lookup.entries(segment):
                at_end = entry.offset == min(segment.limit, self.store.control.write_offset)
                assert at_end or boundaries.get(entry.offset, entry.sequence) == entry.sequence
                assert at_end or entry.offset in boundaries or entry.offset < oldest or self.story.sealed

    def _check_quarantine(self, stored: dict[int, bytes], found: list[Message]) -> None:
        """Nothing that was whole is lost: it is in the channel, in quarantine or was purged."""
        kept = {message.offset: message.payload for message in found} | _quarantined(self._path)
        lost = {offset for offset in stored if offset not in kept and offset >= self.store.control.oldest_offset}
        assert not lost, f"records at {lost} were dropped silently"


def _valid_records(path: Path) -> dict[int, bytes]:
    """Return every message that can be found in the segments, by offset."""
    found: dict[int, bytes] = {}
    for file in (path / "segments").glob("*"):
        begin, content = _content(file)
        at = 0
        while (at := find_record(content, at, len(content), begin + at)) >= 0:
            word, _ = RECORD_HEADER.unpack_from(content, at)
            size = RECORD_HEADER_SIZE + (word & LENGTH_MASK)
            if not word & CONTROL_RECORD:
                found[begin + at] = content[at + RECORD_HEADER_SIZE : at + size]
            at += size
    return found


def _content(file: Path) -> tuple[int, bytes]:
    """Return where the records in a file begin, and the bytes of all; none if it is not a segment."""
    try:
        if begin_of(file.name) is not None:
            segment = Segment.open(Files(), file)
            return segment.begin, segment.map[SEGMENT_HEADER_SIZE:]
        if compressed_begin_of(file.name) is not None:
            compressed = CompressedSegment.open(Files(), file)
            return compressed.begin, bytes(compressed.span(compressed.begin, compressed.end)[0])
    except ValueError:
        pass
    return 0, b""


def _quarantined(path: Path) -> dict[int, bytes]:
    """Return every message in quarantine, by offset."""
    found: dict[int, bytes] = {}
    for file in (path / QUARANTINE).glob("*.records"):
        content, at = file.read_bytes(), 0
        while at < len(content):
            (offset,) = QUARANTINED.unpack_from(content, at)
            at += QUARANTINED.size
            word, _ = RECORD_HEADER.unpack_from(content, at)
            end = at + RECORD_HEADER_SIZE + (word & LENGTH_MASK)
            found[offset] = content[at + RECORD_HEADER_SIZE : end]
            at = end
    return found
