"""Remote files through `pyarrow.fs`: usable in every process, without a JVM."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, Self, final

import pyarrow as pa
from pyarrow import fs

from .._storage.archive.remote_files import RemoteFile, RemoteFiles

_ARROW_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}
_CHUNK: Final = 4 << 20  # bytes


@final
class ArrowFiles(RemoteFiles):
    """The files of a `pyarrow.fs` file system: `file`, `s3`, `gs`, `abfs`, `hdfs`, and what fsspec has installed."""

    def __init__(self, uri: str, system: fs.FileSystem) -> None:
        super().__init__()
        self._uri = uri
        self._system = system

    @classmethod
    def of(cls, uri: str) -> tuple[Self, Path]:
        """Return the file system of a URI and the path in it. Raise `ValueError` if Arrow cannot open it."""
        scheme, colon, rest = uri.partition(":")
        text = f"{_ARROW_SCHEMES.get(scheme, scheme)}{colon}{rest}" if colon else str(Path(uri).absolute())
        if scheme == "file":
            text = f"file:///{rest.lstrip('/')}"  # Hadoop writes file URIs with one slash
        try:
            system, path = fs.FileSystem.from_uri(text)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(
                f"archive={uri!r}: Arrow cannot open it ({error}); "
                "use ship(..., spark=spark) and read_archive(spark, archive) for Spark's own file systems"
            ) from None
        return cls(uri, system), Path(path)

    def describe(self, path: Path) -> str:
        """Return the URI."""
        return self._uri

    def exists(self, path: Path) -> bool:
        """Return whether a file or directory exists at the path."""
        return self._system.get_file_info(str(path)).type != fs.FileType.NotFound

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted. Return an empty list if it does not exist."""
        selector = fs.FileSelector(str(directory), allow_not_found=True)
        return sorted(found.base_name for found in self._system.get_file_info(selector))

    def open_file(self, path: Path) -> RemoteFile:
        """Open a file for reading."""
        return _ArrowFile(self._system.open_input_file(str(path)))

    def upload(self, local: Path, path: Path) -> None:
        """Copy a local file to the path and create missing directories."""
        self._system.create_dir(str(path.parent), recursive=True)
        with local.open("rb") as source, self._system.open_output_stream(str(path)) as target:
            shutil.copyfileobj(source, target, _CHUNK)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file and replace the target if it exists."""
        self._system.move(str(source), str(target))

    def unlink(self, path: Path) -> None:
        """Delete a file if it exists."""
        if self.exists(path):
            self._system.delete_file(str(path))


@final
class _ArrowFile:
    """A file that is open for reading."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self.size: int = file.size()

    def read_at(self, size: int, position: int) -> bytes:
        """Return up to *size* bytes from a position."""
        return self._file.read_at(size, position)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
