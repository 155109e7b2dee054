"""The identity of the control page: for which channel, boot, file and mount it was written."""

from __future__ import annotations

import mmap
import secrets
from typing import NamedTuple, final

from ..._errors import StorageError, repair_command
from ..._format import crc32c, load_u64, store_u64
from ..._format.layout import CONTROL_IDENTITY, CONTROL_MAGIC, FORMAT_VERSION, LOCK_FILE
from .control_file import ControlFile


class _Identity(NamedTuple):
    """The channel, boot, file and mount that the control page was written for."""

    life: int
    """A random number that changes whenever the control page is recovered."""
    channel: bytes
    boot: bytes
    device: int
    inode: int
    mount: int
    """The unique id of the mount; 0 if the kernel has none."""


@final
class ControlIdentity:
    """The identity of one control page. It decides whether the page may be trusted."""

    def __init__(self, file: ControlFile, map_: mmap.mmap) -> None:
        self._file = file
        self._map = map_

    @property
    def channel_id(self) -> bytes | None:
        """The id of the channel that the control page was written for; None if the identity is damaged."""
        stored = self._stored()
        return None if stored is None else stored.channel

    def is_foreign(self, channel_id: str) -> bool:
        """Return whether the control page belongs to another channel, whose checkpoints say nothing about this one."""
        return self.channel_id not in (None, bytes.fromhex(channel_id))

    def check_channel(self, channel_id: str) -> None:
        """Raise `StorageError` if the page belongs to another channel: recovery would delete this channel's data."""
        if self.is_foreign(channel_id):
            raise StorageError(
                f"{self._file.path} belongs to another channel, and nothing was changed; put the right file back, "
                f"or run {repair_command(self._file.path.parent)}, which finds the end of the log without it"
            )

    def belongs_to(self, channel_id: bytes, boot: bytes) -> bool:
        """Return whether the control page was written in this boot, by this channel, into this very file.

        That does not prove that the page is as recent as the other files: see `stale_control`.
        """
        stored = self._stored()
        if stored is None or (stored.channel, stored.boot) != (channel_id, boot):
            return False
        return (stored.device, stored.inode) == self._file.identity

    @property
    def is_same_mount(self) -> bool:
        """Whether the file system was not remounted since the page was written; False if that is unknown."""
        stored, mount = self._stored(), self._file.mount
        return stored is not None and mount != 0 and stored.mount == mount

    def is_of_before(self, channel_id: bytes, boot: bytes) -> bool:
        """Return whether the page was written by this channel, into this very file, and before the last boot or mount.

        A page that was disowned counts as written before.
        """
        stored = self._stored()
        # The device is not compared: its number may differ in every boot.
        if stored is None or stored.channel != channel_id or stored.inode != self._file.identity[1]:
            return False
        return stored.boot != boot or not self.is_same_mount

    def adopt(self, channel_id: bytes, boot: bytes) -> None:
        """Declare the page valid for this boot and mount. It gets a new `life` unless it was valid before."""
        if not (self.belongs_to(channel_id, boot) and self.is_same_mount):
            mount = self._file.mount
            device, inode = self._file.identity
            self._store(_Identity(secrets.randbits(32), channel_id, boot, device, inode, mount))

    def disown(self, boot: bytes) -> None:
        """Declare the page invalid for this boot, so that an interrupted recovery starts again from the beginning."""
        stored = self._stored()
        if stored is not None and stored.boot == boot:
            self._store(stored._replace(boot=_inverted(stored.boot)))

    def is_of_boot(self, boot: bytes) -> bool:
        """Return whether the page was written in this boot, disowned or not: memory may have more than the disk."""
        stored = self._stored()
        return stored is not None and stored.boot in (boot, _inverted(boot))

    def _stored(self) -> _Identity | None:
        """Return the identity that is stored in the page; None if it is damaged, or of another format version."""
        magic, version, life, channel, boot, device, inode, mount, crc = CONTROL_IDENTITY.unpack_from(self._map)
        is_whole = crc == crc32c(self._map[: CONTROL_IDENTITY.size - 4])
        if magic != CONTROL_MAGIC or version != FORMAT_VERSION or not is_whole:
            return None
        return _Identity(life, channel, boot, device, inode, mount)

    def _store(self, identity: _Identity) -> None:
        checked = CONTROL_IDENTITY.pack(CONTROL_MAGIC, FORMAT_VERSION, *identity, 0)[:-4]
        self._map[: CONTROL_IDENTITY.size] = checked + crc32c(checked).to_bytes(4, "little")

    @property
    def lock_file(self) -> int:
        """The inode number of the lock file that is held by the processes that have the channel open."""
        return load_u64(self._map, LOCK_FILE)

    @lock_file.setter
    def lock_file(self, inode: int) -> None:
        store_u64(self._map, LOCK_FILE, inode)


def _inverted(boot: bytes) -> bytes:
    """Return the id that marks a page that was written in a boot and disowned: no boot has that id."""
    return bytes(byte ^ 0xFF for byte in boot)
