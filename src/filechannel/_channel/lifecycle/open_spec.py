"""`OpenSpec`: the arguments of `open_channel`, to open a channel here and again in another process."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Generic, TypeVar, final, get_args

from typing_extensions import TypeForm

from ... import _checks as checks
from ..._errors import (
    ChannelNotFoundError,
    FileChannelError,
    NotAChannelError,
    OptionsMismatchError,
    SchemaMismatchError,
    StorageError,
    UnexpectedFileError,
    UnsupportedFormatError,
    storage_error,
)
from ..._options import UNSET, Capacity, ChannelOptions
from ..._storage.capacity.limits import disk_of
from ..._storage.control.control_file import CONTROL
from ..._storage.manifest import MANIFEST, Manifest
from ..._storage.open_stores import STORES
from ..._storage.recovery.ownership import Ownership
from ..._storage.segments.compression_codecs import require
from ..._storage.store import Store
from ..._storage.system.machine import machine_id
from ..._storage.system.os_calls import Files
from ..schema import Schema, find_difference
from ..schema.codec import Codec, CodecName, Payloads, codec_for, schema_of
from .owner_check import Expected, check_trust

T = TypeVar("T")


_ABOUT_THE_PATH = (errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENODEV, errno.EXDEV)


@final
class OpenSpec(Generic[T]):
    """The checked arguments of one open. Pickles what was given: absolute path, type, codec and options."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        message_type: TypeForm[T],
        codec: Codec[T] | CodecName | None,
        options: ChannelOptions | None,
        create: bool,
        readonly: bool,
        schema: Schema | None = None,
        strict_owner: bool = False,
    ) -> None:
        """Take the *schema* that the channel has, or is to have, if the type was built from it."""
        if not isinstance(options, ChannelOptions | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"options={options!r}: must be ChannelOptions(...)")
        for name, value in (("create", create), ("readonly", readonly), ("strict_owner", strict_owner)):
            checks.instance_of(bool, "True or False")(name, value)
        self.path: Path = _absolute(path)
        self.message_type: TypeForm[T] = message_type
        self._codec = codec
        self._chosen: Codec[T] = codec_for(message_type, codec)
        self._schema = schema_of(message_type, self._chosen) if schema is None else schema
        self.options: ChannelOptions = options or ChannelOptions()
        self.create: bool = create and not readonly
        self.readonly: bool = readonly
        self._strict_owner = strict_owner
        self.expects_mode: bool = self.options.mode is not UNSET
        """Whether this open expects that other users can access the channel."""
        self.names_strict_owner: bool = True
        """Whether a warning names the argument; the command line does not have it."""

    def __copy__(self) -> OpenSpec[T]:
        """Return a copy without repeating the checks."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments."""
        given = (self.path, self.message_type, self._codec, self.options, self.create, self.readonly)
        return type(self), (*given, None, self._strict_owner)

    def for_reopening(self) -> OpenSpec[T]:
        """Return the spec to open the same channel again: with its stored options by then, and without creating one."""
        other = copy(self)
        other.options, other.create = self.options.as_stored(), False
        return other

    def payloads(self) -> Payloads[T]:
        """Return the object that encodes and decodes messages."""
        return Payloads(self.message_type, self._chosen, validate=self.options.per_open().validate)

    def open_store(self, wanted: Callable[[], bool] = lambda: True) -> Store:
        """Open the directory, or share an open store of this process. Blocks, but ends when not *wanted* any more."""
        try:
            return STORES.open(
                self.path,
                check=self._check,
                trust=self._trust,
                new=self._describe_new if self.create else None,
                readonly=self.readonly,
                max_mapped_segments=self.options.per_open().max_mapped_segments,
                wanted=wanted,
            )
        except ChannelNotFoundError:
            raise ChannelNotFoundError(self.path, readonly=self.readonly) from None
        except UnsupportedFormatError as error:
            if error.path is not None:
                raise
            raise UnsupportedFormatError(error.found, error.supported, error.advice, path=self.path) from error
        except UnexpectedFileError:
            raise
        except (NotADirectoryError, IsADirectoryError) as error:
            raise NotAChannelError(self.path, f"{error.filename}: {error.strerror}") from error
        except OSError as error:
            raise self._cannot_be_opened(error) from error

    def _cannot_be_opened(self, error: OSError) -> StorageError:
        what = f"{self.path} cannot be opened"
        may_not_write = isinstance(error, PermissionError) or error.errno == errno.EROFS
        if may_not_write and not self.readonly and self._is_readable():
            return StorageError(f"{storage_error(what, error)}, or open it with readonly=True")
        if error.errno in _ABOUT_THE_PATH:
            why = error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
            return StorageError(f"{what}: {why}; check the path, its parents and its symbolic links")
        return storage_error(what, error)

    def _is_readable(self) -> bool:
        """Return whether there is a channel that this user may read."""
        wanted = (self.path, os.R_OK | os.X_OK), (self.path / MANIFEST, os.R_OK), (self.path / CONTROL, os.R_OK)
        return all(os.access(path, mode, effective_ids=True) for path, mode in wanted)

    def _describe_new(self) -> Manifest:
        options = self.options.resolve(self._disk())
        require(options.compression.method)
        return Manifest.new(machine_id(), self._chosen.name, self._schema.to_json(), options)

    def _disk(self) -> int | None:
        """Return the size of the file system for a new channel, if that matters."""
        capacity, files = self.options.capacity, Files()
        files.confine(self.path)
        if not isinstance(capacity, Capacity):
            return None
        return disk_of(capacity, files, next(path for path in (self.path, *self.path.parents) if files.exists(path)))

    def _trust(self, manifest: Manifest | None, parts: tuple[Ownership, ...]) -> None:
        """Refuse a channel that other users control, or warn about it, before anything is touched."""
        asked = self.options.mode if isinstance(self.options.mode, int) else 0o600
        mode = asked if manifest is None else manifest.options.mode
        expected = Expected(mode, is_asked_for=manifest is None or self.expects_mode)
        check_trust(self.path, parts, expected, strict=self._strict_owner, names_option=self.names_strict_owner)

    def _check(self, manifest: Manifest) -> None:
        """Raise if options, codec or schema do not match, before anything is touched."""
        self.options.check_against(manifest.options, self.path)
        try:
            stored = Schema.from_json(manifest.schema)
        except ValueError as error:
            raise NotAChannelError.without_manifest(
                self.path, f"the schema in {MANIFEST} is damaged ({error})"
            ) from error
        if manifest.codec != self._chosen.name:
            raise self._other_codec(manifest.codec, stored)
        difference = find_difference(stored, self._schema)
        if difference is not None:
            raise SchemaMismatchError(difference.field, difference.expected, difference.found, path=self.path)

    def _other_codec(self, codec: str, schema: Schema) -> FileChannelError:
        """Return the error for a channel with another stored codec, which `configure` cannot change."""
        own = self._chosen.name
        if "raw" in (codec, own):
            advice = f"open it with the type {schema.text(schema.root)}, or use another directory"
            return SchemaMismatchError("message", _content(codec), _content(own), advice, path=self.path)
        with_it = f"codec={codec!r}" if codec in get_args(CodecName) else f"the codec whose name is {codec!r}"
        advice = f"open it with {with_it}, or use another directory: it is fixed at creation"
        return OptionsMismatchError("codec", codec, own, advice, path=self.path)


def _absolute(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path, which does not depend on later changes of directory. Accesses no file."""
    text = checks.path_text("path", path)
    if not text:
        raise ValueError(f"path={path!r}: is empty; the current directory is '.'")
    if "\0" in text:
        raise ValueError(f"path={path!r}: has a null character, which no file name can have")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ValueError(f"path={path!r}: cannot be encoded as a file name: {error.reason}") from error
    return Path(os.path.abspath(text))


def _content(codec: str) -> str:
    return "raw bytes" if codec == "raw" else f"typed messages ({codec})"
