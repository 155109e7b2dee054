"""Real file systems in images, for tests that fill, shut down or remount one.

They need root, loop devices and the mkfs commands; a test that asks for one is skipped, by name, where any of these is
missing. `make test` installs xfsprogs where it may (`.ci/xfsprogs`).
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MIB = 1 << 20
SMALLEST = {"ext4": 24 * MIB, "xfs": 300 * MIB}
"""The smallest image that each mkfs accepts, with some space left for files. Images are sparse."""
_MKFS = {"ext4": ("mkfs.ext4", "-q", "-m", "0", "-b", "4096"), "xfs": ("mkfs.xfs", "-q", "-f")}
_SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN, _IOR('X', 125, __u32)
_AT_MOST = 60.0  # seconds
_SHORTLY = 0.05  # seconds
WITHOUT_JOURNAL = 2
"""FS_SHUTDOWN_FLAGS_NOLOGFLUSH: what only the journal in memory knows is lost, as in a power cut."""


def run_or_skip(*command: object) -> None:
    """Run a command that mounts or makes a file system; skip the test where that is not possible."""
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"needs {command[0]}, which is not installed")
    if done.returncode:
        pytest.skip(f"{command[0]} failed here: {done.stderr.strip()}")


class MountedImage:
    """A file system in an image file, which can be shut down and mounted again within one boot."""

    def __init__(self, directory: Path, kind: str, size: int | None = None) -> None:
        self._image = directory / f"{kind}.image"
        self._kind = kind
        self.path = directory / f"{kind}.mounted"
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(size or SMALLEST[kind])
        run_or_skip(*_MKFS[kind], self._image)

    def mount(self, *options: str) -> None:
        """Mount the image; options as for `mount -o`."""
        run_or_skip("mount", "-t", self._kind, "-o", ",".join(("loop", *options)), self._image, self.path)

    def shut_down(self, flags: int = WITHOUT_JOURNAL) -> None:
        """Stop the mounted file system at once: every later call to it fails until it is mounted again."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", flags))
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        """Unmount; fails if any process still has a file of it open or mapped."""
        subprocess.run(["umount", str(self.path)], check=True, capture_output=True)

    def remount(self) -> None:
        """Unmount and mount the same image again.

        Another mount namespace that anything on the machine has made in between may hold the old mount for a while:
        then the file system that was shut down is mounted again.
        """
        deadline = time.monotonic() + _AT_MOST
        self.unmount()
        self.mount()
        while not self._is_alive():
            assert time.monotonic() < deadline, f"another mount namespace holds {self.path}"
            self.unmount()
            time.sleep(_SHORTLY)
            self.mount()

    def _is_alive(self) -> bool:
        """Return whether the file system was not shut down."""
        try:
            os.listdir(self.path)
        except OSError:
            return False
        return True


def fill(path: Path, keep: int = 0) -> Path:
    """Take all free space of the file system at a path but *keep* bytes, and return a file: removing it frees them."""
    ballast = path / "ballast"
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    try:
        free, at = os.statvfs(path), os.fstat(descriptor).st_size
        end = at + max(0, free.f_bavail * free.f_frsize - keep)
        step = end - at
        while step >= 4096 and (at < end or not keep):
            try:
                os.posix_fallocate(descriptor, at, step)
                at += step
            except OSError:
                step //= 2
    finally:
        os.close(descriptor)
    return ballast


@contextmanager
def mounted_image(directory: Path, kind: str, size: int | None = None) -> Iterator[MountedImage]:
    """A new file system of a kind ("ext4" or "xfs"), mounted while the block runs."""
    image = MountedImage(directory, kind, size)
    image.mount()
    try:
        yield image
    finally:
        subprocess.run(["umount", "--lazy", str(image.path)], check=False, capture_output=True)


@contextmanager
def mounted_tmpfs(directory: Path, size: int) -> Iterator[Path]:
    """A small file system in memory."""
    path = directory / "tmpfs.mounted"
    path.mkdir()
    run_or_skip("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True)


KINDS = ("tmpfs", "ext4", "xfs")


@contextmanager
def small_disk(directory: Path, kind: str) -> Iterator[Path]:
    """A file system with only some mebibytes of free space, whatever the smallest one of its kind is."""
    if kind == "tmpfs":
        with mounted_tmpfs(directory, 4 * MIB) as path:
            yield path
    else:
        with mounted_image(directory, kind) as image:
            if kind == "xfs":
                fill(image.path, keep=16 * MIB).rename(image.path / "occupied")
            yield image.path
