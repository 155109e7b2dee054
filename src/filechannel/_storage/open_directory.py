"""Opening a directory as a channel: check it, create or recover it if needed, and join the processes that use it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from .._errors import ChannelNotFoundError
from .control.channel_directory import ChannelDirectory
from .control.joining import joining
from .control.lock_file import lock_mode
from .current_manifest import CurrentManifest
from .manifest import MANIFEST, Manifest
from .recovery.create import (
    complete_directories,
    create,
    is_being_made,
    open_control_file,
    prepare_directory,
    refuse_other_content,
    refuse_remote,
    remove_leftovers,
)
from .recovery.ownership import Ownership, ownership_of
from .recovery.read_only import list_segments, open_to_read
from .recovery.recover import recover_if_needed
from .segments.free_list import FreeList
from .segments.segment_names import SEGMENTS
from .store import ChannelFiles, ReadOnlyStore, Store
from .system.os_calls import Files
from .writable_store import WritableStore

Trust: TypeAlias = Callable[[Manifest | None, tuple[Ownership, ...]], None]
"""Sees the manifest, if there is one, and the owners of a channel's files; raises if it must not be opened."""
_RETRY_SECONDS = 0.005


def trust_anyone(_manifest: Manifest | None, _parts: tuple[Ownership, ...]) -> None:
    """Accept a channel of any owner."""


def open_store(
    files: Files,
    path: Path,
    *,
    check: Callable[[Manifest], None],
    new: Callable[[], Manifest] | None,
    readonly: bool,
    max_mapped_segments: int,
    wanted: Callable[[], bool],
    trust: Trust = trust_anyone,
) -> Store:
    """Open a directory as a channel.

    `check` sees the manifest before anything is changed, and may raise. So may `trust`, which also sees who owns the
    directory and its files. `new` describes a channel to create. `wanted` returns whether to keep waiting for other
    processes that open the channel.
    """
    if not readonly:
        check = _both(lambda manifest: manifest.check_writable(path), check)
    files.confine(path)
    while True:
        try:
            with suppress(FileNotFoundError, NotADirectoryError):
                files.pin(path)
            known, mode = _make_directory(files, path, check, None if readonly else new, trust)
            descriptor = open_control_file(files, path, readonly, mode)
            try:
                parts = ownership_of(files, path)
                trust(None if known is None else known.manifest, parts)
                # If there was no manifest before, another process may have written one meanwhile.
                check_again = check if known is not None else _trusting(check, trust, parts)
                if readonly:
                    return _to_read(files, path, descriptor, check_again, known, max_mapped_segments)
                return _to_write(files, path, descriptor, check_again, known, new, max_mapped_segments, wanted)
            except BaseException:
                files.close(descriptor)
                raise
        except PermissionError:
            if new is None or not is_being_made(path):
                _check_trust(files, path, trust)
                files.unpin(path)
                raise
        except BaseException:
            files.unpin(path)
            raise
        time.sleep(_RETRY_SECONDS)


def _check_trust(files: Files, path: Path, trust: Trust) -> None:
    """Raise what `trust` raises about a channel that cannot be opened: a wrong owner is the more important finding."""
    try:
        with suppress(OSError):
            trust(None, ownership_of(files, path))
    except BaseException:
        files.unpin(path)
        raise


def _trusting(
    check: Callable[[Manifest], None], trust: Trust, parts: tuple[Ownership, ...]
) -> Callable[[Manifest], None]:
    return _both(check, lambda manifest: trust(manifest, parts))


def _both(first: Callable[[Manifest], None], second: Callable[[Manifest], None]) -> Callable[[Manifest], None]:
    def check_both(manifest: Manifest) -> None:
        first(manifest)
        second(manifest)

    return check_both


@dataclass(frozen=True, slots=True)
class _Checked:
    """A manifest that passed the checks of this open, and its text."""

    text: bytes
    manifest: Manifest


def _read(files: Files, path: Path, check: Callable[[Manifest], None], known: _Checked | None = None) -> _Checked:
    """Read and check the manifest, unless its text is the known one; `FileNotFoundError` if there is none."""
    text = Manifest.read_text(files, path)
    if known is not None and text == known.text:
        return known
    manifest = Manifest.parse(text, path)
    check(manifest)
    return _Checked(text, manifest)


def _make_directory(
    files: Files, path: Path, check: Callable[[Manifest], None], new: Callable[[], Manifest] | None, trust: Trust
) -> tuple[_Checked | None, int]:
    """Check that the directory may be opened, and return its manifest and the mode of its files.

    If it is to be a new channel, the directory exists when this returns.
    """
    mode, found = 0o600, None
    try:
        found = _read(files, path, check)
        mode = found.manifest.options.mode
    except (FileNotFoundError, NotADirectoryError):
        refuse_other_content(files, path)
        if new is not None:
            manifest = new()
            prepare_directory(files, path, manifest)
            files.pin(path)
            trust(None, ownership_of(files, path))
            mode = manifest.options.mode
        elif not files.exists(path / MANIFEST):  # nor has another process just created it
            raise ChannelNotFoundError(path) from None
    refuse_remote(files, path)
    return found, mode


def _to_read(
    files: Files,
    path: Path,
    descriptor: int,
    check: Callable[[Manifest], None],
    known: _Checked | None,
    mapped: int,
) -> ReadOnlyStore:
    manifest = _read(files, path, check, known).manifest
    found = open_to_read(files, path, descriptor, manifest, mapped)
    control = found.control
    try:
        segments = found.segments or list_segments(files, path, control, manifest, mapped, writable=False)
    except BaseException:
        control.close()
        raise
    directory = ChannelDirectory(files, path, descriptor)
    current = CurrentManifest(files, directory, control, manifest)
    return ReadOnlyStore(ChannelFiles(files, directory, control, current, segments), found.unreachable)


def _to_write(
    files: Files,
    path: Path,
    descriptor: int,
    check: Callable[[Manifest], None],
    known: _Checked | None,
    new: Callable[[], Manifest] | None,
    mapped: int,
    wanted: Callable[[], bool],
) -> WritableStore:
    with joining(files, path, descriptor, wanted) as joined:
        control, alone, locks = joined.control, joined.is_alone, joined.membership.locks
        try:
            manifest = _read(files, path, check, known).manifest
        except FileNotFoundError:
            if new is None:
                raise
            create(files, path, descriptor, control, new())
            locks.let_in(descriptor, lock_mode)  # the control file may have been made for a channel with another mode
            manifest = _read(files, path, check).manifest
        control.identity.check_channel(manifest.id)
        if alone:
            complete_directories(files, path, manifest)
        directory = ChannelDirectory(files, path, descriptor)
        current = CurrentManifest(files, directory, control, manifest)
        free_list = FreeList(
            files,
            path / SEGMENTS,
            manifest.options.segment_size,
            manifest.options.mode,
            most=lambda: 0 if control.sealed else current.applied.options.spare_segments,
            fit_from=lambda: control.poisoned_before,
            check_directory=directory.check,
        )
        segments = list_segments(files, path, control, manifest, mapped, writable=True, free_list=free_list)
        with ExitStack() as undo:
            undo.callback(segments.close)
            resume = None
            if alone:
                resume = recover_if_needed(files, path, control, segments, manifest, locks)
                current.applied = remove_leftovers(files, path, manifest)
            store = WritableStore(ChannelFiles(files, directory, control, current, segments), joined.membership)
            undo.callback(store.discard)
            store.begin(alone=alone, resume=resume)
            undo.pop_all()
        return store
