"""From a directory to an open channel: whether it is one, whether it is whole, and who else has it open."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from .._errors import ChannelNotFoundError
from .creation import (
    adopt,
    complete_directories,
    create,
    is_being_made,
    open_control_file,
    prepare_directory,
    refuse_other_content,
    refuse_remote,
)
from .entrance import entering, list_segments, open_to_read
from .files import Files
from .lock_file import lock_mode
from .manifest import MANIFEST, Manifest
from .ownership import Ownership, ownership_of
from .recovery import make_whole
from .store import Store

Trust: TypeAlias = Callable[[Manifest | None, tuple[Ownership, ...]], None]
"""Sees the manifest, if there is one, and who owns the parts of a channel; raises if it is not to be opened."""
_SHORTLY = 0.005  # seconds


def trust_anyone(_manifest: Manifest | None, _parts: tuple[Ownership, ...]) -> None:
    """Open a channel whatever user owns it."""


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

    `check` sees the manifest before anything is touched, and may raise; so may `trust`, which also sees who owns the
    directory and its parts. `new` describes a channel to create; `wanted` says whether to keep waiting for
    others who open it.
    """
    if not readonly:
        check = _together(lambda manifest: manifest.check_writable(path), check)
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
                # A manifest that was not there yet may be that of another process, which has made it meanwhile.
                check_again = check if known is not None else _trusting(check, trust, parts)
                if readonly:
                    return _to_read(files, path, descriptor, check_again, known, max_mapped_segments)
                return _to_write(files, path, descriptor, check_again, known, new, max_mapped_segments, wanted)
            except BaseException:
                files.close(descriptor)
                raise
        except PermissionError:
            if new is None or not is_being_made(path):
                files.unpin(path)
                raise
        except BaseException:
            files.unpin(path)
            raise
        time.sleep(_SHORTLY)


def _trusting(
    check: Callable[[Manifest], None], trust: Trust, parts: tuple[Ownership, ...]
) -> Callable[[Manifest], None]:
    return _together(check, lambda manifest: trust(manifest, parts))


def _together(first: Callable[[Manifest], None], second: Callable[[Manifest], None]) -> Callable[[Manifest], None]:
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
    """Read the manifest and check it, unless it says what it said before; `FileNotFoundError` if there is none."""
    text = Manifest.read_text(files, path)
    if known is not None and text == known.text:
        return known
    manifest = Manifest.parse(text, path)
    check(manifest)
    return _Checked(text, manifest)


def _make_directory(
    files: Files, path: Path, check: Callable[[Manifest], None], new: Callable[[], Manifest] | None, trust: Trust
) -> tuple[_Checked | None, int]:
    """Make sure that the directory is one that may be opened, and return its manifest and the mode of its files.

    If it is to be a new channel, the directory exists then.
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
        elif not files.exists(path / MANIFEST):  # nor was it made in this moment
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
) -> Store:
    manifest = _read(files, path, check, known).manifest
    found = open_to_read(files, path, descriptor, manifest, mapped)
    segments = found.segments or list_segments(files, path, found.control, manifest, mapped, writable=False)
    store = Store(files, path, descriptor, found.control, manifest, segments, readonly=True)
    store.unreachable = found.unreachable
    return store


def _to_write(
    files: Files,
    path: Path,
    descriptor: int,
    check: Callable[[Manifest], None],
    known: _Checked | None,
    new: Callable[[], Manifest] | None,
    mapped: int,
    wanted: Callable[[], bool],
) -> Store:
    with entering(files, path, descriptor, wanted) as entrance:
        control, alone, locks = entrance.control, entrance.is_alone, entrance.membership.locks
        try:
            manifest = _read(files, path, check, known).manifest
        except FileNotFoundError:
            if new is None:
                raise
            create(files, path, descriptor, control, new())
            locks.let_in(descriptor, lock_mode)  # the control file may have been made for a channel of another mode
            manifest = _read(files, path, check).manifest
        control.check_channel(manifest.id)
        if alone:
            complete_directories(files, path, manifest)
        segments = list_segments(files, path, control, manifest, mapped, writable=True)
        store = Store(files, path, descriptor, control, manifest, segments, readonly=False)
        resume = None
        if alone:
            resume = make_whole(files, path, control, store.segments, manifest, locks)
            store.manifest = adopt(files, path, manifest)
        store.begin_to_write(entrance.membership, alone=alone, resume=resume)
        return store
