"""Remote files through Hadoop's `FileSystem` in Spark's JVM: all file systems that Hadoop knows, on the driver only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, Self, cast, final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from .._storage.archive.remote_files import RemoteFile, RemoteFiles

# The Java methods that this module calls, under their Java names.


class _Uri(Protocol):
    def getPath(self) -> str: ...  # noqa: N802


class _JavaPath(Protocol):
    def getFileSystem(self, configuration: object, /) -> _JavaFileSystem: ...  # noqa: N802
    def getName(self) -> str: ...  # noqa: N802
    def toUri(self) -> _Uri: ...  # noqa: N802


class _Status(Protocol):
    def getPath(self) -> _JavaPath: ...  # noqa: N802
    def getLen(self) -> int: ...  # noqa: N802


class _Stream(Protocol):
    def seek(self, position: int, /) -> None: ...
    def close(self) -> None: ...


class _JavaFileSystem(Protocol):
    def exists(self, path: _JavaPath, /) -> bool: ...
    def listStatus(self, path: _JavaPath, /) -> Sequence[_Status]: ...  # noqa: N802
    def getFileStatus(self, path: _JavaPath, /) -> _Status: ...  # noqa: N802
    def open(self, path: _JavaPath, /) -> _Stream: ...
    def copyFromLocalFile(  # noqa: N802
        self, remove: bool, overwrite: bool, source: _JavaPath, target: _JavaPath, /
    ) -> None: ...
    def rename(self, source: _JavaPath, target: _JavaPath, /) -> bool: ...
    def delete(self, path: _JavaPath, recursive: bool, /) -> bool: ...
    def getRawFileSystem(self) -> _JavaFileSystem: ...  # noqa: N802


_Read = Callable[[_Stream, int], bytes]


@final
class HadoopFiles(RemoteFiles):
    """The files of a Hadoop `FileSystem`, opened with the configuration of a Spark session."""

    def __init__(self, uri: str, system: _JavaFileSystem, java_path: Callable[[str], _JavaPath], read: _Read) -> None:
        super().__init__()
        self._uri = uri
        self._system = system
        self._java_path = java_path
        self._read = read

    @classmethod
    def of(cls, uri: str, spark: SparkSession) -> tuple[Self, Path]:
        """Return the file system of a URI and the path in it. Raise `ValueError` if Spark cannot open it."""
        context = spark.sparkContext
        java: object = context._jvm  # pyright: ignore[reportPrivateUsage]
        java_path = cast("Callable[[str], _JavaPath]", _member(java, "org", "apache", "hadoop", "fs", "Path"))
        read = cast("_Read", _member(java, "org", "apache", "commons", "io", "IOUtils", "toByteArray"))
        configuration = cast("Callable[[], object]", _member(context, "_jsc", "hadoopConfiguration"))()
        try:
            root = java_path(uri)
            system = root.getFileSystem(configuration)
        except (Py4JError, PySparkException) as error:
            reason = str(getattr(error, "java_exception", error))
            raise ValueError(f"archive={uri!r}: Spark cannot open it ({reason})") from None
        if uri.startswith("file:"):
            system = system.getRawFileSystem()  # no .crc files: other programs write here without them
        return cls(uri, system, java_path, read), Path(root.toUri().getPath())

    def describe(self, path: Path) -> str:
        """Return the URI."""
        return self._uri

    def exists(self, path: Path) -> bool:
        """Return whether a file or directory exists at the path."""
        return self._system.exists(self._java_path(str(path)))

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted. Return an empty list if it does not exist."""
        if not self.exists(directory):
            return []
        return sorted(status.getPath().getName() for status in self._system.listStatus(self._java_path(str(directory))))

    def open_file(self, path: Path) -> RemoteFile:
        """Open a file for reading."""
        java_path = self._java_path(str(path))
        if not self._system.exists(java_path):
            raise FileNotFoundError(str(path))
        return _HadoopFile(self._system.open(java_path), self._system.getFileStatus(java_path).getLen(), self._read)

    def upload(self, local: Path, path: Path) -> None:
        """Copy a local file to the path and create missing directories."""
        self._system.copyFromLocalFile(False, True, self._java_path(f"file://{local}"), self._java_path(str(path)))

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file and replace the target. Not atomic: Hadoop cannot replace, so the target is deleted first."""
        self.unlink(target)
        if not self._system.rename(self._java_path(str(source)), self._java_path(str(target))):
            raise OSError(f"{self._uri}: {source.name} could not be renamed to {target.name}")

    def unlink(self, path: Path) -> None:
        """Delete a file if it exists."""
        self._system.delete(self._java_path(str(path)), False)


def _member(found: object, *names: str) -> object:
    for name in names:
        found = getattr(found, name)
    return found


@final
class _HadoopFile:
    """A file that is open for reading."""

    def __init__(self, stream: _Stream, size: int, read: _Read) -> None:
        self._stream = stream
        self._read = read
        self.size: int = size

    def read_at(self, size: int, position: int) -> bytes:
        """Return up to *size* bytes from a position."""
        size = min(size, self.size - position)
        if size <= 0:
            return b""
        self._stream.seek(position)
        return bytes(self._read(self._stream, size))

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()
