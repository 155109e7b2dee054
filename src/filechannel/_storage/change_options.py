"""Applying the channel-wide options: when a store is opened, when this process changes them, and when another does."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from .._format import Mutex
from .._options import Durability
from .._runtime.fork_registry import Phase, reset_in_child
from .capacity.reserve_or_drop_oldest import CapacityLimit
from .control.channel_directory import ChannelDirectory
from .control.control_page import Control
from .control.joining import described_opener, opening
from .current_manifest import CurrentManifest
from .disk_reserve import DiskReserve
from .durability.flusher import Flusher
from .log.log import Log
from .manifest import Manifest
from .store_events import StoreEvents
from .system.kernel_locks import KernelLocks
from .system.os_calls import Files


@final
class Configuration:
    """Applies the options of one channel that is open for writing."""

    def __init__(
        self,
        files: Files,
        directory: ChannelDirectory,
        control: Control,
        manifest: CurrentManifest,
        locks: KernelLocks,
        reserve: DiskReserve,
        log: Log,
        capacity: CapacityLimit,
        flusher: Flusher,
        events: StoreEvents,
    ) -> None:
        self._files = files
        self._directory = directory
        self._control = control
        self._manifest = manifest
        self._locks = locks
        self._reserve = reserve
        self._log = log
        self._capacity = capacity
        self._flusher = flusher
        self._events = events

    def apply_capacity(self) -> None:
        """Apply and publish the stored capacity: the process that changed it may have died before it did."""
        self._capacity.set_capacity(self._manifest.applied.options.capacity)
        self._capacity.publish_capacity()

    def apply_durability(self) -> None:
        """Apply the stored durability, as `apply_capacity` does, and from now on what other processes store."""
        self._events.options_changed.attach(self._adopt_changes)
        self._set_deferred(self._manifest.applied.options.durability)

    def change(self, change: Callable[[Manifest], Manifest], wanted: Callable[[], bool]) -> None:
        """Store another manifest, and apply it in every process.

        Raises `UnwantedError`, with nothing changed, if *wanted* returns False while another process opens the channel.
        Call it on a thread on which no signal handler raises.
        """
        self._directory.check()
        held = opening(self._files, self._directory.path, self._directory.descriptor, self._locks, wanted)
        # One change at a time, and no process opens the channel meanwhile.
        with _configuring.held(), held, described_opener(self._control):
            manifest = change(self._manifest.read())
            self._reserve.using_all(lambda: self._manifest.write(manifest))
            self._manifest.applied = manifest
            self._set_deferred(manifest.options.durability)
            self.start_interval()
            with self._log.writing():
                self.apply_capacity()
                self._log.appender.close_window()
                self._log.appender.announce_change()

    def _set_deferred(self, durability: Durability) -> None:
        log, flusher = self._log, self._flusher
        deferred = durability.kind == "fsync"
        if deferred != self._control.deferred:
            flusher.commit()  # flush most of the data while other threads and processes may append
            # No flush is running: it would move the tail that readers see.
            with flusher.held(), log.writing():
                flusher.commit_with_lock()
                log.set_deferred(deferred)

    def start_interval(self) -> None:
        """Flush at the interval that the applied durability names, if it names one."""
        self._flusher.flush_every(self._manifest.applied.options.durability.seconds)

    def _adopt_changes(self) -> None:
        """Adopt options that another process may have changed.

        The control page has published what the writers share.
        """
        manifest = self._manifest.read()
        if manifest != self._manifest.applied:
            self._manifest.applied = manifest
            self._capacity.set_capacity(manifest.options.capacity)
            self.start_interval()


_configuring = Mutex()


def _start_over() -> None:
    """Replace the lock in a forked child: one of the parent's threads, which the child lacks, may have held it."""
    global _configuring
    _configuring = Mutex()


reset_in_child(Phase.STORES, _start_over)
