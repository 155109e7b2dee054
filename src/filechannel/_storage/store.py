"""One channel directory, opened: manifest, control page, segments, log, cursors and flusher together.

Every `FileChannel` of a process that has the same directory open shares one store, and with it the maps.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, final
from weakref import WeakValueDictionary

from .._errors import ClosedResourceError, DiskFullError, FileChannelError, StorageError, storage_error
from .._format import Mutex, populate_settle
from .._offset import Offset
from .._options import Durability, OpenOptions, StoredOptions
from .backlog import Backlog
from .bells import WAKE_FIFOS, Bells
from .control import CONTROL, Control
from .cursor import Cursor
from .cursor_file import CONSUMERS
from .cursors import Cursors
from .entrance import Membership, described_opener, opening
from .expiry import remove_expired
from .files import Files
from .flush import Flusher, Ticket, briefly
from .flush_timer import FLUSH_TIMER
from .holder import Holder
from .index import Mark
from .kernel_locks import KernelLocks
from .log import Log
from .log_reader import Decode, LogReader, Refuse
from .machine import boot_id
from .manifest import Manifest
from .maps import OpenFile
from .places import Places
from .processes import Processes, holder_at, living_in
from .producers import PRODUCERS, Producers
from .reclaim import Reclaim
from .registry import Registry
from .room import Room
from .roster import Roster
from .segment import Segment
from .segments import SEGMENTS, Segments
from .spares import Spares
from .unreachable import Unreachable
from .upkeep import Upkeep

R = TypeVar("R")
_SHORTLY = 0.005  # seconds
_logger = logging.getLogger("filechannel")


@final
@dataclass(frozen=True, slots=True)
class _Parts:
    """What there is only where a channel is open for writing."""

    log: Log
    room: Room
    cursors: Cursors
    producers: Producers
    flusher: Flusher
    reclaim: Reclaim


class Store:
    """An open channel directory. Closing blocks; use `STORES` to open one, or share it."""

    def __init__(
        self,
        files: Files,
        path: Path,
        descriptor: int,
        control: Control,
        manifest: Manifest,
        segments: Segments,
        *,
        readonly: bool,
    ) -> None:
        self.files = files
        self.path = path
        self._control_path = path / CONTROL
        self._opened: int = descriptor
        self.control: Control = control
        self.manifest: Manifest = manifest
        self.readonly = readonly
        self.unreachable: Unreachable | None = None
        """What an open for writing would put aside, if this is a read-only open of a channel that needs recovery."""
        self.notify: Callable[[], object] = _ignore
        """Called, from any thread, after something became visible and event loops wait for it."""
        self.on_close: Callable[[], object] = _ignore
        """Called when the last user has closed it, from any thread."""
        self.on_closing: list[Callable[[], object]] = []
        """Called, in order, before anything is closed: when all have returned, nobody works on it in the background."""
        self.on_boundary: Callable[[], object] = _ignore
        """Called, from any thread, when something may be to be done in the background.

        A reader went on to another segment, a name came or went, other options are stored, or everything was removed.
        """
        self.on_filled: Callable[[], object] = _ignore
        """Called by whoever sends, without the writer word, when a segment was finished."""
        self.segments: Segments = segments
        self.segments.on_dropped = self._leave_segment
        if not readonly:
            self.segments.spares = Spares(
                files,
                path / SEGMENTS,
                manifest.options.segment_size,
                manifest.options.mode,
                most=lambda: 0 if control.sealed else self.manifest.options.spare_segments,
                fit_from=lambda: control.given_up,
            )
        self.places: Places = Places(files, control, self.segments)
        self.roster: Roster = Roster(files, path / CONSUMERS, lambda: control.registrations, self.check_place)
        self.backlog: Backlog = Backlog(control, self.segments, self.places, self.roster)
        self._readers: WeakValueDictionary[int, LogReader] = WeakValueDictionary()
        """All of them, by identity."""
        self._consumers: WeakValueDictionary[int, LogReader] = WeakValueDictionary()
        """The readers that a purge moves, by identity."""
        self._membership: Membership | None = None
        self.bells: Bells | None = None
        """How to wake the event loops of other processes; None if the channel is open read-only."""
        self._writable: _Parts | None = None
        self.registry: Registry = Registry(control)
        self.upkeep: Upkeep = Upkeep(control, None)
        self._followed: tuple[int, StoredOptions] | None = None

    @property
    def _descriptor(self) -> int:
        """Of the control file; `ClosedResourceError` after `close`: the number may be that of another file by then."""
        if self._opened < 0:
            raise ClosedResourceError
        return self._opened

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the control file: what tells channels apart, by whatever paths they are reached."""
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino

    # Opening

    def begin_to_write(self, membership: Membership, *, alone: bool, resume: Offset | None) -> None:
        """Join the writers; if *alone*, the log must go on beyond *resume*.

        The caller holds the opening byte, and gives the membership up if this fails.
        """
        self._membership = membership
        self.upkeep = Upkeep(self.control, membership)
        self.roster.locks = membership.locks
        self.segments.names = OpenFile(self.files, self.files.open_directory(self.segments.directory))
        self._writable = self._open_parts(membership.processes, membership.locks, alone=alone, resume=resume)
        self._apply_durability(self.manifest.options.durability)  # whoever changed it may have died half-way
        if alone:
            if self.control.is_of_before(bytes.fromhex(self.manifest.id), boot_id()):
                self.cursors.begin_again(self.places.earliest())
            self.control.identify(bytes.fromhex(self.manifest.id), boot_id())
            self._finish_purge()
            assert self.segments.spares is not None
            self.segments.spares.trim()
        self.remove_expired()
        self._set_timer(self.manifest.options.durability)
        self.bells = Bells(self.files, self.path / WAKE_FIFOS, self.manifest.options.mode, membership.processes)

    def _open_parts(self, processes: Processes, locks: KernelLocks, *, alone: bool, resume: Offset | None) -> _Parts:
        files, control, segments, options = self.files, self.control, self.segments, self.manifest.options
        room = Room(files, self.path, control, segments, self.backlog, processes)
        room.remove_expired = self.remove_expired
        room.set_capacity(options.capacity)
        room.publish_capacity()  # whoever changed it may have died half-way
        log = Log(files, self.path, control, segments, processes, options, self._notify, room)
        control.spending_reserve(lambda: log.begin(alone=alone, beyond=resume))
        cursors = Cursors(files, self.path / CONSUMERS, options.mode, locks, self._registration_changed)
        producers = Producers(files, self.path / PRODUCERS, control, segments, options.mode)
        flusher = Flusher(control, segments, log, cursors, producers, processes)
        log.set_check_of_place(self.check_place)
        cursors.check_place = producers.check_place = self.check_place
        cursors.register = producers.register = self._spending_all
        cursors.on_moved, cursors.on_freed = room.tell, log.tell_waiters
        log.on_finished = self._segment_finished
        log.on_rolled = self._segment_passed
        log.on_dropped = self._segment_dropped
        log.on_changed = self._follow_manifest
        log.on_deferred = flusher.commit
        log.on_refused = self._show_appended
        self.places.before_look = log.store_marks
        flusher.flush_finished_later()
        reclaim = Reclaim(control, segments, self.places, self.registry, self.upkeep, log, cursors, flusher)
        reclaim.before_removal = producers.settle
        reclaim.on_moved = room.tell
        room.overtake = reclaim.overtake
        return _Parts(log, room, cursors, producers, flusher, reclaim)

    def spending_spares(self, store: Callable[[], R]) -> R:
        """Store something, on a full disk in the room of files that wait."""
        try:
            return store()
        except DiskFullError:
            spares = self.segments.spares
            if spares is None or not spares.names():
                raise
            self.segments.remove_spares()
            return store()

    def _spending_all(self, store: Callable[[], R]) -> R:
        """Store something for which there must be room, on a full disk with what is kept for it, or files that wait."""
        return self.spending_spares(lambda: self.control.spending_reserve(store))

    def _segment_finished(self) -> None:
        self.flusher.flush_finished_later()
        if not self.control.has_reserve:  # there was none left, and now there may be
            self.control.keep_reserve()
        self.on_filled()

    def _segment_dropped(self) -> None:
        self.on_boundary()
        self.reclaim.keep_up()

    def _show_appended(self) -> None:
        """Have what takes the room flushed: if whoever appended it died, nobody else would, and nobody can take it."""
        tail = self.control.tail(deferred=self.control.deferred)
        if tail.offset > self.control.write_offset:
            self.flusher.commit_later(Ticket(tail.offset - 1))

    def _segment_passed(self) -> None:
        self.on_boundary()

    def _registration_changed(self) -> None:
        self._count_consumers_again()
        self.on_boundary()

    def _count_consumers_again(self) -> None:
        """A name came or went, or went back: there is more room now, or less."""
        self.control.count_registration()
        self.room.tell()

    def hold(self, offset: int) -> bool:
        """Hold on to what lies where a consumer was just put; False if it was too late, and that is gone."""
        self._count_consumers_again()
        return self.registry.settle(offset)

    def _finish_purge(self) -> None:
        """Do again what whoever removed segments and died may not have done."""
        with self.log.writing():
            self.registry.carry_out()
        oldest = self.control.oldest_offset
        if self.segments.begins and self.segments.begins[0] < oldest:
            if self.control.is_purged:  # else whoever was overtaken is told so
                self.cursors.move_unowned(self.places.earliest())
            self.flusher.flush_the_rest()
            self.segments.remove_before(oldest)

    def remove_expired(self) -> list[str]:
        """Remove the consumers that had no live owner for as long as they were to stay; return their names."""
        return remove_expired(self.roster, self.cursors)

    def _leave_segment(self, segment: Segment) -> None:
        for reader in self._all_readers():
            reader.leave(segment)

    def _all_readers(self) -> list[LogReader]:
        references = self._readers.valuerefs()  # a list of its own: other threads add and let go
        return [reader for reference in references if (reader := reference()) is not None]

    def let_go_of_removed(self) -> None:
        """Hold no file that has no name any more, whoever removed it: its disk space would not be free.

        Those who read or write do so by themselves when they go on; this is for those who rest. `Busy` if another
        process keeps us waiting.
        """
        if not self.files.is_found_at(self._control_path, self._descriptor):
            return  # nothing was given up: the whole directory is gone, and what is mapped is all there is
        self.segments.drop_removed()
        for reader in self._all_readers():
            reader.leave_removed()
        self.log.let_go_of_given_up(briefly())

    def _notify(self) -> None:
        self.notify()

    def _notify_room(self) -> None:
        self.room.notify()

    # Parts

    @property
    def processes(self) -> Processes | None:
        """The processes that have the channel open for writing; None if this one has not."""
        return None if self._membership is None else self._membership.processes

    @property
    def is_current(self) -> bool:
        """Whether the control page is trusted; otherwise a read-only open shows what can be read without a recovery."""
        return self.control.belongs_to(bytes.fromhex(self.manifest.id), boot_id())

    def writers(self) -> tuple[list[Holder], bool]:
        """Return the processes that have the channel open for writing, in any order, and whether those are all.

        A user who may only read sees those that could mark themselves: see `lock_file`.
        """
        if self._membership is not None:
            return self._membership.processes.alive(), True
        living = living_in(self.files, self.path, self._descriptor)
        return [holder_at(self.control.map, slot) for slot in living.slots], living.is_complete

    @property
    def _parts(self) -> _Parts:
        if self._writable is None:
            raise io.UnsupportedOperation(f"{self.path} is open read-only")
        return self._writable

    @property
    def log(self) -> Log:
        """The log, for appending."""
        return self._parts.log

    @property
    def room(self) -> Room:
        """How much more may be sent."""
        return self._parts.room

    @property
    def cursors(self) -> Cursors:
        """The consumers."""
        return self._parts.cursors

    @property
    def producers(self) -> Producers:
        """Those who must not append a batch twice, and where they left off."""
        return self._parts.producers

    @property
    def flusher(self) -> Flusher:
        """What brings data to disk."""
        return self._parts.flusher

    @property
    def reclaim(self) -> Reclaim:
        """What removes segments that nobody needs."""
        return self._parts.reclaim

    @property
    def is_empty(self) -> bool:
        """Whether nothing is stored, nor left to be removed."""
        oldest, begins = self.control.oldest_offset, self.segments.begins
        return oldest == self.control.write_offset and (not begins or begins[0] >= oldest)

    def options(self) -> StoredOptions:
        """Return the channel-wide options as they are now, whichever process has changed them."""
        epoch = self.control.epoch  # before the look: a change that comes later is seen the next time
        if self._followed is None or self._followed[0] != epoch:
            self.check_place()
            self._followed = epoch, self._read_manifest().options
        return self._followed[1]

    def reader(
        self,
        cursor: Cursor | None,
        decode: Decode | None,
        refuse: Refuse,
        options: OpenOptions,
        *,
        reuse: bool,
        stop: Mark | None = None,
    ) -> LogReader:
        """Return a reader that stands at the very beginning; move it. It goes no further than *stop*."""
        skip = options.on_corruption == "skip"
        reader = LogReader(
            self.control, self.segments, self.places, cursor, decode, refuse, reuse=reuse, skip_damage=skip, stop=stop
        )
        reader.on_passed = self._segment_passed
        if not self.readonly:
            reader.native.tell_room(self._notify_room)
        self._readers[id(reader)] = reader
        return reader

    def adopt(self, reader: LogReader) -> None:
        """Let a reader go on behind a purge without being told: it reads for a consumer."""
        self._consumers[id(reader)] = reader

    def has_ended(self, offset: int) -> bool:
        """Tell whether a reader at this offset has seen all there will ever be."""
        if not self.control.sealed or offset < self.control.write_offset:
            return False
        # Sealed under FSYNC: the last messages may still be on their way to disk.
        return not self.control.deferred or self.control.tail(deferred=True).offset <= offset

    def check_place(self) -> None:
        """Raise `StorageError` if the path leads elsewhere: what is made by name must not go to another channel."""
        if not self.files.is_found_at(self._control_path, self._descriptor):
            raise StorageError(f"{self.path} was moved, removed or replaced while it was open; open it where it is now")

    # Changing

    def seal(self) -> None:
        """End the channel for good, durably. Sealing twice is sealing once."""
        log, flusher = self.log, self.flusher
        flusher.commit()  # most of it while others may append
        with flusher.held(), log.writing():
            flusher.commit_settled()
            # All there is must be visible before the word says that it is all: readers wait for the rest until then,
            # and whoever would have to bring it about may die.
            if log.end():
                flusher.commit_settled()
                self.control.mark_sealed()
            flusher.flush(settled=True)
        log.tell_waiters()
        self.room.tell()

    def configure(self, change: Callable[[Manifest], Manifest], wanted: Callable[[], bool] = lambda: True) -> None:
        """Store another schema or other channel-wide options, and act on them, in every process.

        `UnwantedError`, with nothing changed, if it is not *wanted* any more while another process opens the channel.
        On a thread on which no signal handler raises.
        """
        log = self.log
        self.check_place()
        assert self._membership is not None
        held = opening(self.files, self.path, self._descriptor, self._membership.locks, wanted)
        # One at a time, and no process opens it meanwhile.
        with _configuring.held(), held, described_opener(self.control):
            manifest = change(self._read_manifest())
            self._spending_all(lambda: self._write_manifest(manifest))
            self.manifest = manifest
            self._apply_durability(manifest.options.durability)
            self._set_timer(manifest.options.durability)
            with log.writing():
                self.room.set_capacity(manifest.options.capacity)
                self.room.publish_capacity()
                log.close_window()
                log.announce_change()
        self._registration_changed()  # other limits may have been passed, or give more room

    def _read_manifest(self) -> Manifest:
        try:
            return Manifest.read(self.files, self.path)
        except OSError as error:
            raise storage_error(f"{self.path}: the options cannot be read", error) from error

    def _write_manifest(self, manifest: Manifest) -> None:
        try:
            manifest.write(self.files, self.path)
        except OSError as error:
            raise storage_error(f"{self.path}: the options could not be stored", error) from error

    def _apply_durability(self, durability: Durability) -> None:
        log, flusher = self.log, self.flusher
        deferred = durability.kind == "fsync"
        if deferred != self.control.deferred:
            flusher.commit()  # most of it while others may append
            # Nobody is in the middle of a flush, which would move the tail that readers see.
            with flusher.held(), log.writing():
                flusher.commit_settled()
                log.set_deferred(deferred)

    def _set_timer(self, durability: Durability) -> None:
        flusher = self.flusher
        FLUSH_TIMER.forget(flusher)
        if durability.seconds is not None:
            FLUSH_TIMER.register(flusher, durability.seconds)

    def _follow_manifest(self) -> None:
        """Another process may have changed the options; what writers share, the control page has told already."""
        self.check_place()
        manifest = self._read_manifest()
        if manifest != self.manifest:
            self.manifest = manifest
            self.room.set_capacity(manifest.options.capacity)
            self._set_timer(manifest.options.durability)

    def purge(self) -> None:
        """Remove every message stored now, and let every consumer of this process go on behind them.

        Whoever else reads is told when it comes to what is gone.
        """
        log, cursors, flusher = self.log, self.cursors, self.flusher
        self.check_place()
        flusher.commit()  # most of it while others may append
        with flusher.held(), log.writing():
            flusher.commit_settled()
            log.finish_segment()
            tail = self.control.tail()
            self.producers.settle(tail.offset)
            self.control.purge(tail.offset)
            place = Mark(tail.offset, tail.sequence, 0)
            for reference in self._consumers.valuerefs():  # a list of its own: other threads add and let go
                if (reader := reference()) is not None:
                    reader.start_over(place)
            cursors.start_groups_over(place)
            cursors.move_unowned(place)
            # On disk before the first file goes: after a power cut nobody must look for the others.
            flusher.flush_the_rest(settled=True)
            self.segments.remove_before(tail.offset)
            log.announce_change()
            with suppress(DiskFullError):  # others may have taken the room: then the next message asks for it
                log.begin_segment()
        self.control.keep_reserve()
        self.room.tell()
        self.on_boundary()

    def abandon(self) -> None:
        """Let a thread that was inside when it forked write no more, in the child."""
        if self._writable is not None:
            self.log.abandon()

    def close(self) -> None:
        """Let go of every file. Nothing is flushed: what was sent stays with the kernel, or is on disk already."""
        for end in self.on_closing:
            end()
        self.on_close()
        if self._writable is not None:
            log, cursors, flusher = self.log, self.cursors, self.flusher
            FLUSH_TIMER.forget(flusher)
            # Also where nothing has to be flushed: what the disk has refused meanwhile only this process knows yet.
            if self.manifest.options.durability != Durability.OS or log.refused_flush is not None:
                try:
                    flusher.flush()
                except (FileChannelError, OSError) as error:
                    _logger.error("%s: the last flush failed: %s", self.path, error)
            with flusher.mutex.held(), log.mutex.held():
                flusher.close()
                log.close()
            self.places.before_look = _ignore
            cursors.close_all()
            self.producers.close()
            assert self._membership is not None
            assert self.bells is not None
            self.bells.close()
            self._membership.close()
        for reader in self._all_readers():
            reader.close()
        populate_settle()  # what is yet to be populated holds a map
        self.backlog.close()
        self.segments.close()
        self._close_control()  # before the number of its descriptor can be that of another file
        self.files.unpin(self.path)
        descriptor, self._opened = self._opened, -1
        self.files.close(descriptor)

    def _close_control(self) -> None:
        """Unmap the control page; no thread has a lock word in it meanwhile that it could not give back."""
        if self._writable is None:
            self.control.close()
        else:
            with self.flusher.mutex.held(), self.log.mutex.held():
                self.control.close()


_configuring = Mutex()


def _start_over() -> None:
    """A forked child has none of the other threads, one of which may have held the lock."""
    global _configuring
    _configuring = Mutex()


os.register_at_fork(after_in_child=_start_over)


def _ignore() -> None:
    pass
