"""A file system elsewhere, as Arrow reaches it: from any process, without a JVM."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, Self, final

import pyarrow as pa
from pyarrow import fs

from .._storage.remote import RemoteFile, RemoteFiles

_AS_ARROW_SAYS: Final = {"s3a": "s3", "s3n": "s3"}
_CHUNK: Final = 4 << 20  # bytes


@final
class ArrowFiles(RemoteFiles):
    """What `pyarrow.fs` knows: `file`, `s3`, `gs`, `abfs`, `hdfs`, and by fsspec what is installed."""

    def __init__(self, uri: str, system: fs.FileSystem) -> None:
        super().__init__()
        self._uri = uri
        self._system = system

    @classmethod
    def of(cls, uri: str) -> tuple[Self, Path]:
        """Return the file system that a URI speaks of, and the path in it; `ValueError` if Arrow knows none."""
        scheme, colon, rest = uri.partition(":")
        text = f"{_AS_ARROW_SAYS.get(scheme, scheme)}{colon}{rest}" if colon else str(Path(uri).absolute())
        if scheme == "file":
            text = f"file:///{rest.lstrip('/')}"  # Hadoop writes it with one slash
        try:
            system, path = fs.FileSystem.from_uri(text)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(
                f"archive={uri!r}: Arrow cannot open it ({error}); "
                "through Spark's own file systems go ship(..., spark=spark) and read_archive(spark, archive)"
            ) from None
        return cls(uri, system), Path(path)

    def describe(self, path: Path) -> str:
        """Return the URI."""
        return self._uri

    def exists(self, path: Path) -> bool:
        """Tell whether there is anything at the path."""
        return self._system.get_file_info(str(path)).type != fs.FileType.NotFound

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted; none if it is not there."""
        selector = fs.FileSelector(str(directory), allow_not_found=True)
        return sorted(found.base_name for found in self._system.get_file_info(selector))

    def open_file(self, path: Path) -> RemoteFile:
        """Open a file to read."""
        return _ArrowFile(self._system.open_input_file(str(path)))

    def upload(self, local: Path, path: Path) -> None:
        """Copy a file of this machine there."""
        self._system.create_dir(str(path.parent), recursive=True)
        with local.open("rb") as source, self._system.open_output_stream(str(path)) as target:
            shutil.copyfileobj(source, target, _CHUNK)

    def replace(self, source: Path, target: Path) -> None:
        """Rename, over what may be there."""
        self._system.move(str(source), str(target))

    def unlink(self, path: Path) -> None:
        """Remove a name unless it is gone already."""
        if self.exists(path):
            self._system.delete_file(str(path))


@final
class _ArrowFile:
    """One that is open."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self.size: int = file.size()

    def read_at(self, size: int, position: int) -> bytes:
        """Return up to so many bytes from a position."""
        return self._file.read_at(size, position)

    def close(self) -> None:
        """Let go of it."""
        self._file.close()
