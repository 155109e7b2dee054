"""A channel directory that is open for writing: composes the log, the consumers, the producers and the flusher.

`__init__` is the composition root. It builds the parts from the lowest to the highest, each with what it needs; a part
notifies a higher one through `StoreEvents` only.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from functools import partial
from typing import final

from .._errors import FileChannelError
from .._format import populate_wait
from .._offset import Offset
from .._options import Durability
from .._runtime.may_sleep import briefly
from .capacity.backlog import Backlog
from .capacity.reserve_or_drop_oldest import CapacityLimit
from .change_options import Configuration
from .consumers.cursor_file_format import CONSUMERS
from .consumers.cursors import Cursors
from .consumers.expiry import remove_expired
from .consumers.listing import ConsumerListing
from .consumers.low_watermark import LowWatermark
from .control.control_page import Control
from .control.joining import Membership
from .control.live_processes import Processes
from .control.lock_holder import Holder
from .control.maintenance_lock import MaintenanceLock
from .control.wake_fifos import WAKE_FIFOS, WakeFifos
from .delete_reclaimed_segments import Reclaim, overtake
from .disk_reserve import DiskReserve
from .durability.flusher import Flusher
from .durability.group_commit import GroupCommit
from .log.log import Log
from .manifest import Manifest
from .producers.producer_positions import PRODUCERS, Producers
from .purge import Purge
from .reading.lookup import LogLookup
from .store import ChannelFiles, Store
from .store_events import StoreEvents
from .system.machine import boot_id

_logger = logging.getLogger("filechannel")


@final
class WritableStore(Store):
    """A channel directory that is open for writing. Call `begin` before anything else."""

    wake_fifos: WakeFifos
    """Wakes the event loops of other processes."""

    def __init__(self, opened: ChannelFiles, membership: Membership) -> None:
        files, control, segments = opened.files, opened.control, opened.segments
        path, check_directory = opened.directory.path, opened.directory.check
        options, processes, locks = opened.manifest.applied.options, membership.processes, membership.locks
        events = StoreEvents()
        consumer_listing = ConsumerListing(
            files,
            path / CONSUMERS,
            lambda: control.registrations,
            locks=locks,
            check_directory=check_directory,
        )
        # Needs no index entries, and so not the log, which has entries that are not stored yet.
        backlog = Backlog(control, segments, LogLookup(files, control, segments), consumer_listing)
        self.reserve: DiskReserve = DiskReserve(control, segments)
        self.low_watermark: LowWatermark = LowWatermark(control)
        self.producers: Producers = Producers(
            files,
            path / PRODUCERS,
            control,
            segments,
            options.mode,
            create=self.reserve.using_all,
            check_directory=check_directory,
        )
        self.cursors: Cursors = Cursors(
            files,
            path / CONSUMERS,
            options.mode,
            locks,
            events,
            create=self.reserve.using_all,
            count_change=partial(_consumers_changed, control, events),  # not a method: it would keep the store alive
            check_directory=check_directory,
        )
        self.capacity: CapacityLimit = CapacityLimit(
            files,
            path,
            control,
            segments,
            backlog,
            processes,
            events,
            overtake=partial(overtake, self.producers, self.low_watermark),
            remove_expired=partial(remove_expired, consumer_listing, self.cursors),
        )
        self.log: Log = Log(files, path, control, segments, processes, options, self.capacity, events, check_directory)
        lookup = LogLookup(files, control, segments, self.log.store_index_entries)
        super().__init__(opened, events, lookup, consumer_listing, backlog, MaintenanceLock(control, membership))
        self.flusher: Flusher = Flusher(control, segments, self.log, self.cursors, self.producers, processes, events)
        self.group_commit: GroupCommit = GroupCommit(control, segments, self.flusher, events)
        events.segment_finished.attach(
            self.reserve.restore
        )  # after the flusher: if this fails, it must not stop a flush
        self.reclaim: Reclaim = Reclaim(
            control,
            segments,
            lookup,
            self.low_watermark,
            self.maintenance_lock,
            self.log,
            self.cursors,
            self.producers,
            self.flusher,
            events,
        )
        self._purge = Purge(
            control,
            segments,
            lookup,
            self._readers,
            self.low_watermark,
            self.log,
            self.cursors,
            self.producers,
            self.flusher,
        )
        self._configuration = Configuration(
            files,
            opened.directory,
            control,
            opened.manifest,
            locks,
            self.reserve,
            self.log,
            self.capacity,
            self.flusher,
            events,
        )
        self._membership = membership

    # Opening and closing

    def begin(self, *, alone: bool, resume: Offset | None) -> None:
        """Join the writers. If *alone*, the log must resume beyond *resume*.

        The caller holds the open lock. If this fails, it calls `discard` and closes the membership.
        """
        self.segments.names.keep_directory_open()
        self._configuration.apply_capacity()
        self.control.reserve.using(lambda: self.log.begin(alone=alone, beyond=resume))
        self.flusher.flush_finished_later()
        self._configuration.apply_durability()
        if alone:
            self._begin_alone()
        self.remove_expired()
        self._configuration.start_interval()
        self.wake_fifos = WakeFifos(
            self.files, self.path / WAKE_FIFOS, self.manifest.options.mode, self._membership.processes
        )

    def _begin_alone(self) -> None:
        channel_id = bytes.fromhex(self.manifest.id)
        if self.control.identity.is_of_before(channel_id, boot_id()):
            self.cursors.restart_lost(self.lookup.earliest())
        self.control.identity.adopt(channel_id, boot_id())
        self._purge.finish()
        if self.segments.free_list is not None:
            self.segments.free_list.trim()

    def abandon(self) -> None:
        """In a forked child, prevent writes by the thread that forked if it was inside an append."""
        self.log.abandon()

    def discard(self) -> None:
        """Close the files of a store whose `begin` failed; the caller closes the control file."""
        self.flusher.flush_every(None)
        with self.flusher.mutex.held():
            self.flusher.close()
        self.cursors.close_all()
        self.producers.close()
        self.log.discard()
        populate_wait()
        self.backlog.close()
        self.segments.close()
        self.events.detach_all()

    def _stop_writing(self) -> None:
        """Close what changes the channel. With durability OS nothing is flushed: messages are in the page cache."""
        log, flusher = self.log, self.flusher
        self.flusher.flush_every(None)
        # With durability OS too, if a flush has failed: only this process knows of the failure yet.
        if self.manifest.options.durability != Durability.OS or log.dirty.failure is not None:
            try:
                flusher.flush()
            except (FileChannelError, OSError) as error:
                _logger.error("%s: the last flush failed: %s", self.path, error)
        with flusher.mutex.held(), log.mutex.held():
            flusher.close()
            log.close()
        self.cursors.close_all()
        self.producers.close()
        self.wake_fifos.close()
        self._membership.close()

    def _close_control(self) -> None:
        """Unmap the control page while no thread of this process holds a lock in it: it could not release it later."""
        with self.flusher.mutex.held(), self.log.mutex.held():
            self.control.close()

    # Processes and consumers

    @property
    def processes(self) -> Processes:
        """The processes that have the channel open for writing."""
        return self._membership.processes

    def writers(self) -> tuple[list[Holder], bool]:
        """Return the processes that have the channel open for writing; the list is complete."""
        return self.processes.alive(), True

    def retain_from(self, offset: int) -> bool:
        """Keep the messages from a consumer's new position on. Return False if they are already reclaimed."""
        _announce_consumers(self.control, self.events)
        return self.low_watermark.retain_from(offset)

    def remove_expired(self) -> list[str]:
        """Remove the consumers that had no live owner for longer than their expiry time. Return their names."""
        return remove_expired(self.consumer_listing, self.cursors)

    # Changing

    def seal(self) -> None:
        """Seal the channel, durably. Sealing a sealed channel has no effect."""
        log, flusher = self.log, self.flusher
        flusher.commit()  # flush most of the data while other threads and processes may append
        with flusher.held(), log.writing():
            flusher.commit_with_lock()
            # All records must be visible before the sealed word is set. Otherwise readers would wait for the rest, and
            # the process that has to publish it may die.
            if log.append_seal():
                flusher.commit_with_lock()
                self.control.mark_sealed()
            flusher.flush_with_lock()
        log.wake_receivers()
        self.capacity.wake_senders()

    def configure(self, change: Callable[[Manifest], Manifest], wanted: Callable[[], bool] = lambda: True) -> None:
        """Store another schema or other channel-wide options, and apply them in every process.

        Raises `UnwantedError`, with nothing changed, if *wanted* returns False while another process opens the channel.
        Call it on a thread on which no signal handler raises.
        """
        self._configuration.change(change, wanted)
        # The new retention may allow more to be reclaimed, and the new capacity more to be sent.
        _consumers_changed(self.control, self.events)

    def purge(self) -> None:
        """Remove every message stored now, and move every consumer of this process past them.

        A reader in another process gets an error when it reaches a removed message.
        """
        self.check_directory()
        self._purge.run()
        self.capacity.wake_senders()
        self.events.maintenance_due()

    def release_removed(self) -> None:
        """Close deleted files, whichever process deleted them: the disk space of an open file is not freed.

        Active readers and writers close them when they move to the next segment; this is for idle ones. Raises `Busy`
        if another process holds the lock too long.
        """
        if not self._directory.is_at_path:
            return  # nothing was reclaimed: the whole directory was deleted, and the mapped files are all that is left
        self.segments.drop_removed()
        self._readers.release_removed()
        self.log.release_reclaimed(briefly())


def _consumers_changed(control: Control, events: StoreEvents) -> None:
    _announce_consumers(control, events)
    events.maintenance_due()


def _announce_consumers(control: Control, events: StoreEvents) -> None:
    """Let all processes recount the available capacity: a consumer was registered, removed or moved back."""
    control.count_registration()
    events.position_moved()


def writable(store: Store) -> WritableStore:
    """Return a store that can be changed; `io.UnsupportedOperation` if it is open read-only."""
    if not isinstance(store, WritableStore):
        raise io.UnsupportedOperation(f"{store.path} is open read-only")
    return store
