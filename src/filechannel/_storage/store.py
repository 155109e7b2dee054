"""One channel directory, opened: manifest, control page, segments, log, cursors and flusher together.

Every `FileChannel` of a process that has the same directory open shares one store, and with it the maps.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from .._errors import ChannelNotFoundError, CorruptRecordError, DiskFullError, FileChannelError, StorageError
from .._format.layout import CONTROL_SIZE, MODE_BYTE
from .._offset import Offset
from .._options import Durability, OpenOptions, StoredOptions
from .control import CONTROL, Checkpoint, Control, Tail
from .creation import (
    adopt,
    create,
    open_control_file,
    prepare_directory,
    refuse_other_content,
    refuse_remote,
    take_for_this_process,
)
from .cursors import CONSUMERS, Cursor, Cursors
from .files import Files
from .flush import Flusher
from .flush_timer import FLUSH_TIMER
from .index import Mark
from .log import Log
from .log_reader import Decode, LogReader, Refuse
from .loss import reaches
from .machine import boot_id
from .manifest import MANIFEST, Manifest
from .places import Places
from .recovery import Recovery
from .segments import SEGMENTS, Segments

_logger = logging.getLogger("filechannel")


class Store:
    """An open channel directory. Opening and closing block; use `STORES` to share."""

    def __init__(
        self, files: Files, path: Path, descriptor: int, manifest: Manifest, *, readonly: bool, mapped: int
    ) -> None:
        self._files = files
        self.path = path
        self._descriptor = descriptor
        self.manifest: Manifest = manifest
        self.readonly = readonly
        self.notify: Callable[[], object] = _ignore
        """Called, from any thread, after something became visible to readers that are armed."""
        self.control: Control = self._open_control_to_read() if readonly else Control(files, descriptor)
        self.segments: Segments = Segments(files, path / SEGMENTS, writable=not readonly, most_mapped=mapped)
        self.places: Places = Places(files, self.control, self.segments)
        self._readers: WeakSet[LogReader] = WeakSet()
        self._writable: tuple[Log, Cursors, Flusher] | None = None
        if not readonly:
            tail = self._believed_tail()
            resume = None if tail is not None and self._is_intact(tail) else self._recover(tail)
            self._writable = self._open_for_writing(resume)
            self.control.identify(bytes.fromhex(manifest.id), boot_id())
            self._finish_purge()

    # Opening

    @classmethod
    def open(
        cls,
        files: Files,
        path: Path,
        *,
        check: Callable[[Manifest], None],
        new: Callable[[], Manifest] | None,
        readonly: bool,
        max_mapped_segments: int,
    ) -> Store:
        """Open a directory as a channel.

        `check` sees the manifest before anything is touched, and may raise; `new` describes a channel to create.
        """
        if files.exists(path / MANIFEST):
            check(Manifest.read(files, path))
        elif new is None or readonly:
            refuse_other_content(files, path)
            raise ChannelNotFoundError(path)
        else:
            refuse_other_content(files, path)
            prepare_directory(files, path, new())
        refuse_remote(files, path)
        descriptor = open_control_file(files, path, readonly)
        try:
            if not readonly:
                take_for_this_process(files, path, descriptor)
            if not files.exists(path / MANIFEST):
                assert new is not None
                create(files, path, descriptor, new())
            manifest = Manifest.read(files, path)
            check(manifest)
            if not readonly:
                manifest = adopt(files, path, manifest)
            return cls(files, path, descriptor, manifest, readonly=readonly, mapped=max_mapped_segments)
        except BaseException:
            if not readonly:
                files.unlock(descriptor, MODE_BYTE)
            files.close(descriptor)
            raise

    def _open_control_to_read(self) -> Control:
        files, descriptor = self._files, self._descriptor
        if files.size(descriptor) < CONTROL_SIZE:
            raise StorageError(f"{self.path / CONTROL} is cut off; open the channel for writing once, which repairs it")
        control = Control(files, descriptor, writable=False)
        if control.belongs_to(bytes.fromhex(self.manifest.id), boot_id()) and control.has_tail:
            return control
        # Nobody has recovered it yet: show what the last checkpoint covers, in a copy of our own.
        control = Control(files, descriptor, private=True)
        checkpoint = control.checkpoint() or Checkpoint(Offset(0), 0, Offset(0))
        tail = Tail(checkpoint.offset, checkpoint.sequence, checkpoint.offset)
        control.start_over(tail, checkpoint.oldest, sealed=checkpoint.sealed)
        return control

    def _believed_tail(self) -> Tail | None:
        """Return the end of the log if the words of the control page were written here and in this boot."""
        control = self.control
        if not control.belongs_to(bytes.fromhex(self.manifest.id), boot_id()) or not control.has_tail:
            return None
        control.forget_dead_writer()
        return control.tail()

    def _is_intact(self, tail: Tail) -> bool:
        """Tell whether the words of the control page are those of what is there."""
        begins, oldest, checkpoint = self.segments.begins, self.control.oldest_offset, self.control.checkpoint()
        if checkpoint is None or not (oldest == checkpoint.oldest or oldest in begins) or oldest > tail.offset:
            return False
        active = self.segments.covering(tail.offset)
        if active is None:
            return oldest == tail.offset
        try:
            return reaches(self.segments.get(active), tail.offset)
        except CorruptRecordError:
            return False

    def _recover(self, believed: Tail | None) -> Offset | None:
        mode = self.manifest.options.mode
        resume = Recovery(self._files, self.path, self.control, self.segments, mode).run(believed)
        self.segments.scan()
        return resume

    def _open_for_writing(self, resume: Offset | None) -> tuple[Log, Cursors, Flusher]:
        options = self.manifest.options
        log = Log.open(self._files, self.path, self.control, self.segments, options, self._notify, resume)
        cursors = Cursors(self._files, self.path / CONSUMERS, options.mode)
        flusher = Flusher(self._files, self.control, self.segments, log, cursors)
        log.on_finished = flusher.flush_finished_later
        self.places.before_look = log.store_marks
        flusher.flush_finished_later()
        self._apply_durability(options.durability, log, flusher)
        return log, cursors, flusher

    def _finish_purge(self) -> None:
        """Do again what whoever purged and died may not have done."""
        oldest = self.control.oldest_offset
        if self.segments.begins and self.segments.begins[0] < oldest:
            self.cursors.move_unowned(self.places.earliest())
            self.flusher.flush()
            self.segments.remove_before(oldest)

    def _notify(self) -> None:
        self.notify()

    # Parts

    def _parts(self) -> tuple[Log, Cursors, Flusher]:
        if self._writable is None:
            raise io.UnsupportedOperation(f"{self.path} is open read-only")
        return self._writable

    @property
    def log(self) -> Log:
        """The log, for appending."""
        return self._parts()[0]

    @property
    def cursors(self) -> Cursors:
        """The consumers."""
        return self._parts()[1]

    @property
    def flusher(self) -> Flusher:
        """What brings data to disk."""
        return self._parts()[2]

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
        self._readers.add(reader)
        return reader

    def has_ended(self, offset: int) -> bool:
        """Tell whether a reader at this offset has seen all there will ever be."""
        if not self.control.sealed or offset < self.control.write_offset:
            return False
        # Sealed under FSYNC: the last messages may still be on their way to disk.
        deferred = self._writable is not None and self._writable[0].writer.deferred
        return not deferred or self.control.tail(deferred=True).offset <= offset

    # Changing

    def configure(self, schema: object, options: StoredOptions) -> None:
        """Store a new schema and new channel-wide options, and act on them."""
        log, _, flusher = self._parts()
        manifest = self.manifest.with_changes(schema=schema, options=options)
        manifest.write(self._files, self.path)
        self.manifest = manifest
        self._apply_durability(options.durability, log, flusher)

    def _apply_durability(self, durability: Durability, log: Log, flusher: Flusher) -> None:
        FLUSH_TIMER.forget(flusher)
        deferred = durability.kind == "fsync"
        if deferred != log.writer.deferred:
            flusher.commit()  # most of it while others may append
            # Nobody is in the middle of a flush, which would move the tail that readers see.
            with flusher.settled():
                tail = self.control.tail(deferred=log.writer.deferred)
                self.control.publish(tail, deferred=deferred)
                log.writer.defer(deferred)
        if durability.seconds is not None:
            FLUSH_TIMER.register(flusher, durability.seconds)

    def purge(self) -> None:
        """Remove every message stored now, and let every consumer of this process go on behind them."""
        log, cursors, flusher = self._parts()
        flusher.commit()  # most of it while others may append
        with flusher.settled():
            log.finish_segment()
            tail = self.control.tail()
            self.control.oldest_offset = tail.offset
            place = Mark(tail.offset, tail.sequence, 0)
            for reader in list(self._readers):
                reader.move(place)
            cursors.move_unowned(place)
            # On disk before the first file goes: after a power cut nobody must look for the others.
            flusher.flush()
            self.segments.remove_before(tail.offset)
            with suppress(DiskFullError):  # others may have taken the room: then the next message asks for it
                log.begin_segment()

    def close(self) -> None:
        """Let go of every file. Nothing is flushed: what was sent stays with the kernel, or is on disk already."""
        if self._writable is not None:
            log, cursors, flusher = self._writable
            FLUSH_TIMER.forget(flusher)
            if self.manifest.options.durability != Durability.OS:
                try:
                    flusher.flush()
                except (FileChannelError, OSError) as error:
                    _logger.error("%s: the last flush failed: %s", self.path, error)
            with flusher.settled(flush=False):
                flusher.close()
                log.close()
            self.places.before_look = _ignore
            cursors.close_all()
            self._files.unlock(self._descriptor, MODE_BYTE)
        self.segments.close()
        self._files.close(self._descriptor)


def _ignore() -> None:
    pass
