"""An open channel directory: what can be read of it. `WritableStore` adds what changes it.

All `FileChannel` objects of a process that have the same directory open share one store, and with it the memory maps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import final

from .._format import populate_wait
from .._offset import LogPosition
from .._options import OpenOptions, StoredOptions
from .capacity.backlog import Backlog
from .consumers.cursor import Cursor
from .consumers.cursor_file_format import CONSUMERS
from .consumers.listing import ConsumerListing
from .control.channel_directory import ChannelDirectory
from .control.control_page import Control
from .control.live_processes import holder_at, living_in
from .control.lock_holder import Holder
from .control.maintenance_lock import MaintenanceLock
from .current_manifest import CurrentManifest
from .manifest import Manifest
from .reading.log_reader import Decode, LogReader, Refuse
from .reading.lookup import LogLookup
from .reading.open_readers import OpenReaders
from .recovery.unreachable_records import Unreachable
from .segments.catalog import Segments
from .store_events import StoreEvents
from .system.machine import boot_id
from .system.os_calls import Files


@final
@dataclass(frozen=True, slots=True)
class ChannelFiles:
    """The open files of a channel, from which a store is built."""

    files: Files
    directory: ChannelDirectory
    control: Control
    manifest: CurrentManifest
    segments: Segments


class Store(ABC):
    """An open channel directory. `close` blocks. Use `STORES` to open a store or to share an open one."""

    def __init__(
        self,
        opened: ChannelFiles,
        events: StoreEvents,
        lookup: LogLookup,
        consumer_listing: ConsumerListing,
        backlog: Backlog,
        maintenance_lock: MaintenanceLock,
    ) -> None:
        self.files: Files = opened.files
        self._directory = opened.directory
        self.path: Path = opened.directory.path
        self.control: Control = opened.control
        self._manifest = opened.manifest
        self.segments: Segments = opened.segments
        self.events = events
        self.lookup = lookup
        self.consumer_listing = consumer_listing
        self.backlog = backlog
        self.maintenance_lock = maintenance_lock
        self._readers = OpenReaders()
        self.segments.add_user(self._readers)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the control file. They identify the channel, by whatever path it is reached."""
        return self._directory.identity

    @property
    def manifest(self) -> Manifest:
        """The manifest as this process applies it."""
        return self._manifest.applied

    def options(self) -> StoredOptions:
        """Return the current channel-wide options, whichever process changed them."""
        return self._manifest.options()

    @property
    def unreachable(self) -> Unreachable | None:
        """What an open for writing would quarantine; None if the channel needs no recovery."""
        return None

    @property
    def is_current(self) -> bool:
        """Whether the control page is current. If not, a read-only open shows what can be read without recovery."""
        return self.control.identity.belongs_to(bytes.fromhex(self.manifest.id), boot_id())

    @property
    def is_empty(self) -> bool:
        """Whether no message is stored and no file is left to be removed."""
        oldest, begins = self.control.oldest_offset, self.segments.begins
        return oldest == self.control.write_offset and (not begins or begins[0] >= oldest)

    @abstractmethod
    def writers(self) -> tuple[list[Holder], bool]:
        """Return the processes that have the channel open for writing, in any order, and whether the list is complete.

        A user with read permission only sees the processes that could mark themselves: see `lock_file`.
        """

    def reader(
        self,
        cursor: Cursor | None,
        decode: Decode | None,
        refuse: Refuse,
        options: OpenOptions,
        *,
        reuse: bool,
        stop: LogPosition | None = None,
    ) -> LogReader:
        """Return a reader at the very start of the log, to be moved by the caller. It does not read beyond *stop*."""
        reader = LogReader(
            self.control,
            self.segments,
            self.lookup,
            self.events,
            cursor,
            decode,
            refuse,
            reuse=reuse,
            skip_damage=options.on_corruption == "skip",
            stop=stop,
        )
        self._readers.add(reader)
        return reader

    def adopt(self, reader: LogReader) -> None:
        """Let a reader resume after a purge without an error: it reads for a consumer."""
        self._readers.adopt(reader)

    def has_ended(self, offset: int) -> bool:
        """Return whether a reader at this offset has seen every message that there will ever be."""
        if not self.control.sealed or offset < self.control.write_offset:
            return False
        # Sealed under FSYNC: the last messages may not be flushed yet.
        return not self.control.deferred or self.control.tail(deferred=True).offset <= offset

    def check_directory(self) -> None:
        """Raise `StorageError` if the path leads to another directory: no file may be created in another channel."""
        self._directory.check()

    def close(self) -> None:
        """Close every file."""
        self.events.closing()
        self.events.closed()
        self._stop_writing()
        self._readers.close()
        populate_wait()  # pages queued to be populated keep their map open
        self.backlog.close()
        self.segments.close()
        self._close_control()  # before its descriptor number can be reused for another file
        self._directory.close()
        self.events.detach_all()

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child, prevent writes by the thread that forked if it was inside an append."""

    @abstractmethod
    def _stop_writing(self) -> None:
        """Close what changes the channel, before the files are closed."""

    @abstractmethod
    def _close_control(self) -> None:
        """Unmap the control page."""


@final
class ReadOnlyStore(Store):
    """A channel directory that this process cannot change: opened read-only, or an archive."""

    def __init__(self, opened: ChannelFiles, unreachable: Unreachable | None = None) -> None:
        files, control, segments = opened.files, opened.control, opened.segments
        lookup = LogLookup(files, control, segments)
        consumer_listing = ConsumerListing(
            files,
            opened.directory.path / CONSUMERS,
            lambda: control.registrations,
            locks=None,
            check_directory=opened.directory.check,
        )
        super().__init__(
            opened,
            StoreEvents(),
            lookup,
            consumer_listing,
            Backlog(control, segments, lookup, consumer_listing),
            MaintenanceLock(control, None),
        )
        self._unreachable = unreachable

    @property
    def unreachable(self) -> Unreachable | None:
        """What an open for writing would quarantine; None if the channel needs no recovery."""
        return self._unreachable

    def writers(self) -> tuple[list[Holder], bool]:
        """Return the processes that have the channel open for writing, as far as this user may see them."""
        living = living_in(self.files, self.path, self._directory.descriptor)
        return [holder_at(self.control.map, slot) for slot in living.slots], living.is_complete

    def abandon(self) -> None:
        """Do nothing: no thread writes."""

    def _stop_writing(self) -> None:
        pass

    def _close_control(self) -> None:
        self.control.close()
