"""Everything `open_channel` was given: what it takes to open a channel, here and again in another process."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Generic, TypeVar, final, get_args

from typing_extensions import TypeForm

from .. import _checks as checks
from .._errors import (
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
from .._options import UNSET, Capacity, ChannelOptions
from .._storage.codecs import require
from .._storage.files import Files
from .._storage.machine import machine_id
from .._storage.manifest import MANIFEST, Manifest
from .._storage.ownership import Ownership
from .._storage.room import disk_of
from .._storage.store import Store
from .._storage.stores import STORES
from .codec import Codec, CodecName, Payloads, codec_for, schema_of
from .schema import Schema, find_difference
from .trust import Expected, check_trust

T = TypeVar("T")


_ABOUT_THE_PATH = (errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENODEV, errno.EXDEV)


@final
class Recipe(Generic[T]):
    """The arguments of one open, checked. Pickles as what was given: absolute path, type, codec and options."""

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
        """Take the *schema* that the channel has, or is to have, if the type was made from it."""
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
        """Whether this open knows that the channel may be open to other users."""
        self.names_strict_owner: bool = True
        """Whether a warning names the argument; there is none on the command line."""

    def __copy__(self) -> Recipe[T]:
        """Return another one without checking everything again."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments."""
        given = (self.path, self.message_type, self._codec, self.options, self.create, self.readonly)
        return type(self), (*given, None, self._strict_owner)

    def for_reopening(self) -> Recipe[T]:
        """Return what opens a channel again that was open: as it is stored by then, and never another in its place."""
        other = copy(self)
        other.options, other.create = self.options.as_stored(), False
        return other

    def payloads(self) -> Payloads[T]:
        """Return how messages become bytes."""
        return Payloads(self.message_type, self._chosen, validate=self.options.per_open().validate)

    def open_store(self, wanted: Callable[[], bool] = lambda: True) -> Store:
        """Open the directory, or share it with others of this process. Blocks, but not when not wanted any more."""
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
        if isinstance(error, PermissionError) and not self.readonly:
            return StorageError(f"{storage_error(what, error)}, or open it with readonly=True")
        if error.errno in _ABOUT_THE_PATH:
            why = error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
            return StorageError(f"{what}: {why}; check the path, its parents and where links lead to")
        return storage_error(what, error)

    def _describe_new(self) -> Manifest:
        options = self.options.resolve(self._disk())
        require(options.compression.method)
        return Manifest.new(machine_id(), self._chosen.name, self._schema.to_json(), options)

    def _disk(self) -> int | None:
        """Return how large the file system is in which a new channel will lie, if that matters."""
        capacity, files = self.options.capacity, Files()
        files.confine(self.path)
        if not isinstance(capacity, Capacity):
            return None
        return disk_of(capacity, files, next(place for place in (self.path, *self.path.parents) if files.exists(place)))

    def _trust(self, manifest: Manifest | None, parts: tuple[Ownership, ...]) -> None:
        """Refuse a channel that other users have in hand, or warn of it, before anything is touched."""
        asked = self.options.mode if isinstance(self.options.mode, int) else 0o600
        mode = asked if manifest is None else manifest.options.mode
        expected = Expected(mode, is_asked_for=manifest is None or self.expects_mode)
        check_trust(self.path, parts, expected, strict=self._strict_owner, names_option=self.names_strict_owner)

    def _check(self, manifest: Manifest) -> None:
        """Refuse to open what does not fit, before anything is touched."""
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
        """Return the error for a channel whose stored codec is not that of this open; no `configure` changes it."""
        own = self._chosen.name
        if "raw" in (codec, own):
            advice = f"open it with the type {schema.text(schema.root)}, or use another directory"
            return SchemaMismatchError("message", _content(codec), _content(own), advice, path=self.path)
        with_it = f"codec={codec!r}" if codec in get_args(CodecName) else f"the codec whose name is {codec!r}"
        advice = f"open it with {with_it}, or use another directory: it is fixed at creation"
        return OptionsMismatchError("codec", codec, own, advice, path=self.path)


def _absolute(path: str | os.PathLike[str]) -> Path:
    """Return the path that is meant now, wherever the process goes later; no file is touched."""
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
