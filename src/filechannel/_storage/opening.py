"""From a directory to an open channel: whether it is one, whether it is whole, and who else has it open."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from .._errors import ChannelNotFoundError
from .creation import (
    adopt,
    create,
    is_being_made,
    open_control_file,
    prepare_directory,
    refuse_other_content,
    refuse_remote,
)
from .entrance import entering, open_control_to_read
from .files import Files
from .manifest import MANIFEST, Manifest
from .recovery import make_whole
from .store import Store

_SHORTLY = 0.005  # seconds


def open_store(
    files: Files,
    path: Path,
    *,
    check: Callable[[Manifest], None],
    new: Callable[[], Manifest] | None,
    readonly: bool,
    max_mapped_segments: int,
    wanted: Callable[[], bool],
) -> Store:
    """Open a directory as a channel.

    `check` sees the manifest before anything is touched, and may raise; `new` describes a channel to create;
    `wanted` tells whether to go on waiting for others who open it.
    """
    while True:
        try:
            mode = _make_directory(files, path, check, None if readonly else new)
            descriptor = open_control_file(files, path, readonly, mode)
            try:
                if readonly:
                    return _to_read(files, path, descriptor, check, max_mapped_segments)
                return _to_write(files, path, descriptor, check, new, max_mapped_segments, wanted)
            except BaseException:
                files.close(descriptor)
                raise
        except PermissionError:
            if new is None or not is_being_made(path):
                raise
        time.sleep(_SHORTLY)


def _make_directory(
    files: Files, path: Path, check: Callable[[Manifest], None], new: Callable[[], Manifest] | None
) -> int:
    """Make sure that the directory is one that may be opened, and return the permission bits of its files.

    If it is to be a new channel, the directory exists then.
    """
    mode = 0o600
    if files.exists(path / MANIFEST):
        manifest = Manifest.read(files, path)
        check(manifest)
        mode = manifest.options.mode
    else:
        refuse_other_content(files, path)
        if new is not None:
            manifest = new()
            prepare_directory(files, path, manifest)
            mode = manifest.options.mode
        elif not files.exists(path / MANIFEST):  # nor was it made in this moment
            raise ChannelNotFoundError(path)
    refuse_remote(files, path)
    return mode


def _to_read(files: Files, path: Path, descriptor: int, check: Callable[[Manifest], None], mapped: int) -> Store:
    manifest = Manifest.read(files, path)
    check(manifest)
    control = open_control_to_read(files, path, descriptor, manifest)
    return Store(files, path, descriptor, control, manifest, readonly=True, mapped=mapped)


def _to_write(
    files: Files,
    path: Path,
    descriptor: int,
    check: Callable[[Manifest], None],
    new: Callable[[], Manifest] | None,
    mapped: int,
    wanted: Callable[[], bool],
) -> Store:
    with entering(files, path, descriptor, wanted) as entrance:
        control, alone = entrance.control, entrance.is_alone
        if not files.exists(path / MANIFEST):
            assert new is not None
            create(files, path, descriptor, control, new())
        manifest = Manifest.read(files, path)
        check(manifest)
        if alone:
            manifest = adopt(files, path, manifest)
        store = Store(files, path, descriptor, control, manifest, readonly=False, mapped=mapped)
        resume = make_whole(files, path, control, store.segments, manifest) if alone else None
        store.begin_to_write(entrance.membership, alone=alone, resume=resume)
        return store
