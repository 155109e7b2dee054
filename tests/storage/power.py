"""A file system that remembers what is on disk, so that the power can be cut at any moment.

`PowerFiles` works on real files and watches them. A file is what was flushed last, and every version seen since; a
directory is the names that were flushed last, and every change since. An `Image` is all of that at one moment. From
it come two things: what another process finds after `kill -9` (everything), and what the next boot finds after a power
cut (of each page any version since the last flush, torn at 512 bytes, zero if it was never flushed; of the changes of
a directory any subset).
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeAlias

from filechannel._storage.system.os_calls import Files

_PAGE = 4096
_SECTOR = 512
_VERSIONS = 12
"""Of each file, that many versions since the last flush are remembered."""


@dataclass(eq=False)
class File:
    """One file: what the disk has for sure, and what it may have."""

    durable: bytes = b""
    versions: list[bytes] = field(default_factory=list)

    @property
    def content(self) -> bytes:
        """What every process sees."""
        return self.versions[-1] if self.versions else self.durable

    def observe(self, content: bytes) -> None:
        """See what is there now."""
        if content != self.content:
            self.versions = [*self.versions[1 - _VERSIONS :], content]

    def flush(self) -> None:
        """The disk has it."""
        self.durable, self.versions = self.content, []

    def after_power_cut(self, random: Random) -> bytes:
        """Return what may be left of it."""
        candidates = [self.durable, *self.versions]
        size = random.choice([len(candidate) for candidate in candidates])
        mood = random.random()
        if mood < 0.2:
            return self.durable
        if mood < 0.4:
            return self.content
        return b"".join(_page(candidates, start, random) for start in range(0, size, _PAGE))[:size]


def _page(candidates: list[bytes], start: int, random: Random) -> bytes:
    def part(position: int, size: int) -> bytes:
        return random.choice(candidates)[position : position + size].ljust(size, b"\0")

    if random.random() < 0.25:
        return b"".join(part(position, _SECTOR) for position in range(start, start + _PAGE, _SECTOR))
    return part(start, _PAGE)


@dataclass(eq=False)
class Directory:
    """One directory: the names that the disk has for sure, and the changes that it may have."""

    durable: dict[str, Entry] = field(default_factory=dict)
    changes: list[dict[str, Entry | None]] = field(default_factory=list)

    @property
    def names(self) -> dict[str, Entry]:
        """What every process sees."""
        return _changed(self.durable, self.changes)

    def observe(self, names: dict[str, Entry]) -> None:
        """See what is there now. What changed at once is one change: a rename happens or does not."""
        before = self.names
        changed = sorted(name for name in {*before, *names} if before.get(name) is not names.get(name))
        change = {name: names.get(name) for name in changed}
        if change:
            self.changes.append(change)

    def flush(self) -> None:
        """The disk has it."""
        self.durable, self.changes = self.names, []

    def after_power_cut(self, random: Random) -> dict[str, Entry]:
        """Return the names that may be left."""
        mood, changes = random.random(), self.changes
        if mood < 0.2:
            changes = []
        elif mood < 0.4:
            changes = changes[: random.randint(0, len(changes))]
        elif mood < 0.8:
            changes = [change for change in changes if random.random() < 0.6]
        return _changed(self.durable, changes)


Entry: TypeAlias = File | Directory


def _changed(names: dict[str, Entry], changes: list[dict[str, Entry | None]]) -> dict[str, Entry]:
    result = dict(names)
    for change in changes:
        for name, entry in change.items():
            if entry is None:
                result.pop(name, None)
            else:
                result[name] = entry
    return result


class Image:
    """A file tree at one moment, and what may be left of it."""

    def __init__(self, root: Directory) -> None:
        self._root = _Copies().directory(root)

    def materialize(self, target: Path) -> Directory:
        """Make the directory that another process finds after `kill -9`; return what the disk has of it."""
        root = _Copies().directory(self._root)
        _write(target, root, lambda file: file.content, lambda directory: directory.names)
        return root

    def with_old_page(self, target: Path, name: str, choose: Callable[[list[bytes]], bytes]) -> Directory:
        """Make the directory that another process finds, but with an older first page of one file.

        *choose* is given every version that the disk may have of it.
        """

        def content(file: File) -> bytes:
            if file is not chosen:
                return file.content
            return choose([each[:_PAGE] for each in (file.durable, *file.versions)]) + file.content[_PAGE:]

        root = _Copies().directory(self._root)
        chosen = _find(root, name)
        _write(target, root, content, lambda directory: directory.names)
        return tree_on_disk(target)

    def cut_power(self, target: Path, random: Random) -> Directory:
        """Make the directory that the next boot finds; the disk has all of it."""
        _write(
            target,
            self._root,
            lambda file: file.after_power_cut(random),
            lambda directory: directory.after_power_cut(random),
        )
        return tree_on_disk(target)


def _find(directory: Directory, name: str) -> Entry | None:
    """Return the file of a name, wherever it is."""
    for each, entry in directory.names.items():
        found = entry if each == name else _find(entry, name) if isinstance(entry, Directory) else None
        if found is not None:
            return found
    return None


class _Copies:
    """Copies a tree, each file once."""

    def __init__(self) -> None:
        self._known: dict[int, Entry] = {}

    def directory(self, directory: Directory) -> Directory:
        copy = Directory()
        copy.durable = {name: self._entry(entry) for name, entry in directory.durable.items()}
        copy.changes = [
            {name: None if entry is None else self._entry(entry) for name, entry in change.items()}
            for change in directory.changes
        ]
        return copy

    def _entry(self, entry: Entry) -> Entry:
        known = self._known.get(id(entry))
        if known is None:
            is_file = isinstance(entry, File)
            known = File(entry.durable, list(entry.versions)) if is_file else self.directory(entry)
            self._known[id(entry)] = known
        return known


def _write(
    target: Path,
    directory: Directory,
    content_of: Callable[[File], bytes],
    names_of: Callable[[Directory], dict[str, Entry]],
) -> None:
    target.mkdir()
    for name, entry in sorted(names_of(directory).items()):
        if isinstance(entry, File):
            (target / name).write_bytes(content_of(entry))
        else:
            _write(target / name, entry, content_of, names_of)


def tree_on_disk(path: Path) -> Directory:
    """Return a directory as it is, all of it on disk."""
    directory = Directory()
    for entry in sorted(path.iterdir()):
        if not entry.is_fifo():  # a FIFO has no content, and the first open removes it
            directory.durable[entry.name] = tree_on_disk(entry) if entry.is_dir() else File(entry.read_bytes())
    return directory


class PowerFiles(Files):
    """Real files under one root, watched. `on_call` is called before each call to the operating system."""

    def __init__(self, root: Path, tree: Directory | None = None) -> None:
        self._root = root
        self._tree = tree or tree_on_disk(root)
        self._known: dict[tuple[int, int], Entry] = {}
        self._descriptors: dict[int, int] = {}
        self._names_changed = False
        self.mounted = 1
        self.on_call: Callable[[str], object] = lambda _: None
        self._learn(root, self._tree)

    def _learn(self, path: Path, directory: Directory) -> None:
        for name, entry in directory.names.items():
            self._remember(path / name, entry)
            if isinstance(entry, Directory):
                self._learn(path / name, entry)

    def _remember(self, path: Path, entry: Entry) -> None:
        # Held open so that its inode is not given to another file while we remember it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        self._known[status.st_dev, status.st_ino] = entry
        self._descriptors[id(entry)] = descriptor

    def stop_watching(self) -> None:
        """Release every file."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    # Watching

    def observe(self) -> None:
        """See what there is now."""
        self._observe_changed_names()
        for entry in self._known.values():
            if isinstance(entry, File):
                self._observe_file(entry)

    def _observe_changed_names(self) -> None:
        if self._names_changed:
            self._observe_names(self._root, self._tree)
            self._names_changed = False

    def _observe_names(self, path: Path, directory: Directory) -> None:
        names: dict[str, Entry] = {}
        for found in sorted(os.scandir(path), key=lambda found: found.name):
            status = found.stat(follow_symlinks=False)
            if stat.S_ISFIFO(status.st_mode):
                continue
            key = status.st_dev, status.st_ino
            if key not in self._known:
                self._remember(path / found.name, Directory() if found.is_dir() else File())
            names[found.name] = self._known[key]
        directory.observe(names)
        for name, entry in names.items():
            if isinstance(entry, Directory):
                self._observe_names(path / name, entry)

    def _observe_file(self, file: File) -> None:
        descriptor = self._descriptors[id(file)]
        file.observe(os.pread(descriptor, os.fstat(descriptor).st_size, 0))

    def image(self) -> Image:
        """Return what there is now, and what the disk has of it."""
        self.observe()
        return Image(self._tree)

    def _called(self, name: str, *, changes_names: bool = False) -> None:
        self._observe_changed_names()
        self.on_call(name)
        self._names_changed = changes_names

    # The calls that change something

    def make_directory(self, path: Path, mode: int) -> None:
        """Create a directory."""
        self._called("make_directory", changes_names=True)
        super().make_directory(path, mode)

    def open(self, path: Path, *, create: bool = False, writable: bool = True, mode: int = 0o600) -> int:
        """Open a file."""
        if create:
            self._called("open", changes_names=True)
        return super().open(path, create=create, writable=writable, mode=mode)

    def create(self, path: Path, mode: int, *, replace: bool = True) -> int:
        """Create a file."""
        if replace:
            self.unlink(path)
        self._called("create", changes_names=True)
        return super().create(path, mode, replace=replace)

    def make(self, path: Path, size: int, content: bytes, position: int, mode: int) -> None:
        """Make a file."""
        self._called("make", changes_names=True)
        super().make(path, size, content, position, mode)

    def identity(self, descriptor: int) -> tuple[int, int]:
        """Return the same for every copy: an image is the same file at another moment."""
        return 1, 1

    def mount(self, descriptor: int) -> int:
        """Return the same for every copy, until a test says that the file system was mounted again."""
        return self.mounted

    def write_at(self, descriptor: int, data: bytes, position: int) -> None:
        """Write."""
        self._called("write_at")
        super().write_at(descriptor, data, position)

    def grow(self, descriptor: int, size: int) -> None:
        """Make longer."""
        self._called("grow")
        super().grow(descriptor, size)

    def allocate(self, path: Path, descriptor: int, position: int, size: int) -> None:
        """Allocate disk space."""
        self._called("allocate")
        super().allocate(path, descriptor, position, size)

    def map(self, descriptor: int, size: int, *, writable: bool = True, private: bool = False) -> mmap.mmap:
        """Map."""
        self._called("map")
        return super().map(descriptor, size, writable=writable, private=private)

    def flush(self, descriptor: int) -> None:
        """Bring a file to disk."""
        self._called("flush")
        status = os.fstat(descriptor)
        entry = self._known.get((status.st_dev, status.st_ino))
        if isinstance(entry, File):  # else it has no name any more
            self._observe_file(entry)
            entry.flush()

    def flush_directory(self, directory: Path) -> None:
        """Bring the names of a directory to disk."""
        self._called("flush_directory")
        self._flush_names(directory.stat())

    def flush_names(self, descriptor: int) -> None:
        """Bring the names of an open directory to disk."""
        self._called("flush_directory")
        self._flush_names(os.fstat(descriptor))

    def _flush_names(self, status: os.stat_result) -> None:
        is_root = os.path.samestat(status, self._root.stat())
        entry = self._tree if is_root else self._known.get((status.st_dev, status.st_ino))
        if isinstance(entry, Directory):
            entry.flush()

    def replace(self, source: Path, target: Path) -> None:
        """Rename."""
        self._called("replace", changes_names=True)
        super().replace(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        self._called("unlink", changes_names=True)
        super().unlink(path)
