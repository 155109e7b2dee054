"""Every exception of the package, grouped by when it happens.

::

    FileChannelError
    ├── ChannelNotFoundError            opening: there is nothing at the path
    ├── NotAChannelError                opening: there is something else at the path
    ├── ChannelLockedError              opening, sending: somebody else holds it
    ├── ChannelMismatchError            Spark: the path leads to another channel, here or on another host
    ├── UntrustedChannelError           opening with strict_owner: other users can change or read it
    ├── OptionsMismatchError            opening: an option contradicts what is stored
    ├── SchemaMismatchError             opening: the message type contradicts what is stored
    ├── ChannelSealedError              sending: the channel is complete
    ├── ChannelFullError                sending: no room for it now (also an anyio.WouldBlock); nothing was written
    ├── MessageTooLargeError            sending: nothing was written
    ├── CodecError                      sending: a value that cannot be encoded; nothing was written
    │   ├── MessageTypeError            … because of its type (also a TypeError)
    │   └── DecodeError                 receiving: an intact record that does not decode
    ├── ConsumerError
    │   ├── ConsumerBusyError           the name has a live owner (also an anyio.BusyResourceError)
    │   ├── ConsumerMismatchError       the name is of another kind: single or group
    │   ├── ConsumerDamagedError        the position of the name cannot be read
    │   ├── UnknownConsumerError        there is no such name
    │   ├── AckError                    acking what was not received
    │   ├── LeaseExpiredError           acking what was given to somebody else
    │   └── HandlerError                serving: a message was given up, and there is nowhere to send it
    └── StorageError
        ├── DiskFullError               nothing was written
        ├── DataExpiredError            receiving: the next messages were dropped
        ├── CorruptRecordError          receiving: damaged bytes
        ├── UnexpectedFileError         a link, a FIFO or the like in place of a file (also an OSError)
        └── UnsupportedFormatError      written by a newer release, or needs an extra

Each one builds its own message from typed attributes, and each one pickles and copies with both.
A closed object, the end of a stream and an empty channel are anyio's own ``ClosedResourceError``,
``EndOfStream`` and ``WouldBlock``; wrong arguments are ``ValueError`` and ``TypeError``.
"""

from __future__ import annotations

import copy
import errno
import io
import os
from datetime import datetime
from pathlib import Path
from typing import Self, final

import anyio

from ._checks import shown
from ._offset import Offset
from ._shell import command, path_word, removing

__all__ = [
    "AckError",
    "ChannelFullError",
    "ChannelLockedError",
    "ChannelMismatchError",
    "ChannelNotFoundError",
    "ChannelSealedError",
    "CodecError",
    "ConsumerBusyError",
    "ConsumerDamagedError",
    "ConsumerError",
    "ConsumerMismatchError",
    "CorruptRecordError",
    "DataExpiredError",
    "DecodeError",
    "DiskFullError",
    "FileChannelError",
    "HandlerError",
    "LeaseExpiredError",
    "MessageTooLargeError",
    "MessageTypeError",
    "NotAChannelError",
    "OptionsMismatchError",
    "SchemaMismatchError",
    "StorageError",
    "UnexpectedFileError",
    "UnknownConsumerError",
    "UnsupportedFormatError",
    "UntrustedChannelError",
]


class FileChannelError(Exception):
    """The base of every error of this package: ``except FileChannelError`` catches them all."""

    def __init__(self, message: str) -> None:
        # Not super(): an error that is also one of anyio's must not let anyio reword the message.
        Exception.__init__(self, message)

    def __reduce__(self) -> tuple[object, ...]:
        """Restore message and attributes as they are, whatever the constructor takes."""
        return _restore, (type(self), *self.args), self.__dict__.copy()


def _restore(cls: type[FileChannelError], *args: object) -> FileChannelError:
    """Make an error as pickle does: without its constructor."""
    error = cls.__new__(cls, *args)
    error.args = args  # which an OSError leaves to its constructor
    return error


class _ItemError(FileChannelError):
    """An error about one value, which may be an item of a batch."""

    index: int | None
    """Which item of the batch, counted from 0; None for a single message."""

    def __init__(self, message: str, index: int | None) -> None:
        super().__init__(message)
        self.index = index

    def at(self, index: int) -> Self:
        """Return the same error, with the same cause, about item *index* of a batch."""
        error = copy.copy(self)
        error.index = index
        error.__cause__ = self.__cause__
        return error

    def __str__(self) -> str:
        message = super().__str__()
        return message if self.index is None else f"item {self.index} of the batch: {message}"


# Opening


class ChannelNotFoundError(FileChannelError):
    """There is no channel at the path, and it was not to be created."""

    path: Path

    def __init__(self, path: str | os.PathLike[str], *, readonly: bool = False) -> None:
        """Say how to create it, unless it was opened *readonly*."""
        self.path = Path(path)
        advice = ": readonly=True creates nothing" if readonly else ", or open it with create=True"
        super().__init__(f"there is no channel at {self.path}; check the path{advice}")


class NotAChannelError(FileChannelError):
    """What is at the path is not a channel, or no longer a whole one. Nothing was changed."""

    path: Path
    reason: str
    advice: str | None
    """What mends it, if it was a channel once."""

    def __init__(self, path: str | os.PathLike[str], reason: str, advice: str | None = None) -> None:
        self.path = Path(path)
        self.reason = reason
        self.advice = advice
        super().__init__(
            f"{self.path} is not a channel: {reason}; nothing was changed, "
            f"{advice or 'choose another path or restore it'}"
        )

    @classmethod
    def without_manifest(cls, path: str | os.PathLike[str], reason: str) -> Self:
        """Return the error for a channel whose manifest is damaged or gone."""
        command = repair_command(path, "--like", "OTHER")
        return cls(path, reason, f"{command} makes it anew, as that of OTHER: a like channel, or a copy of the file")


class ChannelLockedError(FileChannelError):
    """Somebody else holds the channel, and this kind of access cannot be shared."""

    path: Path
    pid: int | None
    """The holder's process id on its own host, if known."""
    host: str | None
    """The holder's host name, if known."""
    since: datetime | None
    """When the holder took it (an aware datetime), if known."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        pid: int | None,
        host: str | None,
        since: datetime | None,
        reason: str | None = None,
    ) -> None:
        """Say with a *reason* why it cannot be shared, if that is not the kind of access."""
        self.path = Path(path)
        self.pid = pid
        self.host = host
        self.since = since
        super().__init__(
            f"{self.path} is held by {_holder(pid, host, since)}{f' ({reason})' if reason else ''}; "
            "close it there, or wait for its release"
        )


class UntrustedChannelError(FileChannelError):
    """Other users can change or read the channel, and it was opened with `strict_owner=True`. Nothing was changed."""

    path: Path
    reason: str
    owner: int | None
    """The user, neither this one nor root, to whom the directory or a part of it belongs; None if there is none."""
    mode: int | None
    """The stored permission bits, if this open did not ask for them; None if it did."""
    parts: tuple[str, ...]
    """Which parts have wider permissions than the channel's mode says; "." is the directory itself."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        reason: str,
        owner: int | None,
        mode: int | None,
        *,
        parts: tuple[str, ...] = (),
    ) -> None:
        self.path = Path(path)
        self.reason = reason
        self.owner = owner
        self.mode = mode
        self.parts = parts
        advice = [] if owner is None else ["change the owner of the directory and its files"]
        if parts:
            advice.append("take those permissions away with chmod")
        if mode is not None and mode & ~0o600:
            advice.append(f"give options=ChannelOptions(mode=0o{mode:o}) if that mode is intended")
        text = " and ".join(advice) or "correct that"
        super().__init__(
            f"{self.path} is not under the control of this user alone: {reason}. Nothing was changed. "
            f"{text[0].upper()}{text[1:]}, or open it without strict_owner=True if you trust those users"
        )


class OptionsMismatchError(FileChannelError):
    """An option was given explicitly and differs from what the channel was created with."""

    option: str
    stored: object
    given: object
    path: Path | None
    """The channel's directory, if known."""

    def __init__(
        self,
        option: str,
        stored: object,
        given: object,
        advice: str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Take what to do about it as *advice*; without, the option is one that is fixed at creation."""
        self.option = option
        self.stored = stored
        self.given = given
        self.path = _path(path)
        if advice is None:
            advice = f"leave {option} out to use what is stored, or use another directory: it is fixed at creation"
        super().__init__(
            f"{_channel(self.path)} has {option}={shown(option, stored)}, not {shown(option, given)}; {advice}"
        )


class SchemaMismatchError(FileChannelError):
    """The message type and the channel's schema do not decode each other's messages."""

    field: str
    """Where they differ: a dotted path such as ``Order.lines[].sku``."""
    expected: str
    """What the channel's schema has there."""
    found: str
    """What the message type given has there."""
    path: Path | None
    """The channel's directory, if known."""

    def __init__(
        self,
        field: str,
        expected: str,
        found: str,
        advice: str = (
            "open it with a matching type; after that, 'await channel.configure(schema=...)' can change the schema"
        ),
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Take what to do about it as *advice*."""
        self.field = field
        self.expected = expected
        self.found = found
        self.path = _path(path)
        super().__init__(f"{field}: {_channel(self.path)} has {expected}, but the type given has {found}; {advice}")


class ChannelMismatchError(FileChannelError):
    """A path leads to another channel than before, here or on another host. Nothing was read or written there."""

    path: Path
    expected: str
    """The channel that was there, by its id, and the segment if a copy has another one."""
    found: str
    """The channel that is there."""
    host: str
    """The host on which it is there."""

    def __init__(self, path: str | os.PathLike[str], expected: str, found: str, host: str) -> None:
        self.path = Path(path)
        self.expected = expected
        self.found = found
        self.host = host
        super().__init__(
            f"{self.path} on host {host} is {found}, expected {expected}: the directory was replaced, or this host has "
            "another one at the path; let every host see the same directory, or ship the channel to an archive"
        )


# Sending


class ChannelSealedError(FileChannelError):
    """The channel was sealed: it is complete and takes no more messages."""

    path: Path

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        super().__init__(f"{self.path} is sealed and takes no more messages; send to another channel")


class ChannelFullError(FileChannelError, anyio.WouldBlock):
    """The capacity is used up until a consumer takes more, or something is removed. Nothing was written."""

    path: Path
    size: int
    """Bytes that there was no room for, headers of records included."""
    messages: int
    """Messages that there was no room for."""
    has_consumers: bool
    """Whether any consumer is registered; with none, all that is stored counts."""

    def __init__(self, path: str | os.PathLike[str], size: int, messages: int, *, has_consumers: bool = True) -> None:
        self.path = path if isinstance(path, Path) else Path(path)  # it is raised often, and that takes a while
        self.size = size
        self.messages = messages
        self.has_consumers = has_consumers
        what = "another message" if messages == 1 else f"{messages:,} messages"
        until, advice = "its slowest consumer has taken more", "consumers() says who that is"
        if not has_consumers:
            until = "something is removed: all that is stored counts, since no consumer is registered"
            advice = "register one that receives, or purge()"
        super().__init__(
            f"{self.path} is full: no room for {what} ({size:,} bytes) until {until}; nothing was sent, {advice}"
        )


class MessageTooLargeError(_ItemError):
    """A message or batch can never fit. Nothing was written."""

    size: int
    limit: int
    unit: str
    """What both count: "bytes" or "messages"."""

    def __init__(self, size: int, limit: int, index: int | None = None, *, unit: str = "bytes") -> None:
        self.size = size
        self.limit = limit
        self.unit = unit
        super().__init__(
            f"{size:,} {unit} are more than the {limit:,} the channel takes; "
            "send it in parts, or use a channel with a larger limit",
            index,
        )


class CodecError(_ItemError):
    """A value cannot be encoded as a message of the channel. Nothing was written."""

    reason: str

    def __init__(self, reason: str, index: int | None = None) -> None:
        self.reason = reason
        super().__init__(reason, index)


class MessageTypeError(CodecError, TypeError):
    """A value is not of the channel's message type. Nothing was written."""

    expected: str
    found: str

    def __init__(self, expected: str, found: str, index: int | None = None) -> None:
        self.expected = expected
        self.found = found
        super().__init__(f"the channel takes {expected}, not {found}", index)


# Receiving


class DecodeError(CodecError):
    """A record is intact but does not decode. The cursor stays: ``seek(error.next_offset)`` passes it."""

    offset: Offset
    next_offset: Offset
    payload: bytes

    def __init__(self, offset: Offset, next_offset: Offset, reason: str, payload: bytes) -> None:
        self.offset = offset
        self.next_offset = next_offset
        self.payload = payload
        self.reason = reason
        _ItemError.__init__(
            self,
            f"the record at offset {offset} does not decode: {reason}; pass it with seek({next_offset})",
            None,
        )


# Consumers


class ConsumerError(FileChannelError):
    """Something about a named consumer."""

    name: str
    reason: str
    path: Path | None
    """The channel's directory, if known."""

    def __init__(self, name: str, reason: str, *, path: str | os.PathLike[str] | None = None) -> None:
        self.name = name
        self.reason = reason
        self.path = _path(path)
        where = "" if path is None else f" of {self.path}"
        super().__init__(f"consumer {name!r}{where}: {reason}")


class ConsumerBusyError(ConsumerError, anyio.BusyResourceError):
    """The name has a live owner; a name has one at a time."""

    pid: int | None
    """The owner's process id on its own host, if known."""
    host: str | None
    """The owner's host name, if known."""
    since: datetime | None
    """When the owner took it (an aware datetime), if known."""

    def __init__(
        self,
        name: str,
        pid: int | None,
        host: str | None,
        since: datetime | None,
        advice: str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.pid = pid
        self.host = host
        self.since = since
        advice = advice or (
            "share it inside one process with clone(), over many processes with group(), or choose another name"
        )
        super().__init__(name, f"in use by {_holder(pid, host, since)}; {advice}", path=path)


class ConsumerMismatchError(ConsumerError):
    """The name is registered as another kind of consumer."""

    found: str
    wanted: str

    def __init__(self, name: str, found: str, wanted: str, *, path: str | os.PathLike[str] | None = None) -> None:
        self.found = found
        self.wanted = wanted
        super().__init__(
            name,
            f"registered as {found}, not {wanted}; choose another name, or remove it with remove_consumer()",
            path=path,
        )


class ConsumerDamagedError(ConsumerError):
    """The file of the name is damaged. Nothing was changed; the name holds back everything until it is repaired."""

    file: Path | None
    """The damaged file, if it is that of a group whose position is intact; None if the position itself is lost."""
    problem: str | None
    """What is wrong with that file."""

    def __init__(
        self,
        name: str,
        *,
        path: str | os.PathLike[str] | None = None,
        file: str | os.PathLike[str] | None = None,
        problem: str | None = None,
    ) -> None:
        self.file = _path(file)
        self.problem = problem
        if file is None:
            reason = f"its position is damaged; {repair_command(path)} lets it begin again at the oldest message"
        else:
            reason = (
                f"{self.file} is damaged ({problem}); close every process that uses the channel, then "
                f"{repair_command(path)} lets the group resume at its position"
            )
        super().__init__(name, f"{reason}, or forget it with remove_consumer()", path=path)


class UnknownConsumerError(ConsumerError):
    """No consumer of that name is registered."""

    def __init__(self, name: str, *, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(name, "no such consumer; consumers() lists the names", path=path)


class AckError(ConsumerError):
    """A message was acknowledged that is not outstanding: never received, or settled already."""


class LeaseExpiredError(ConsumerError):
    """The lease on a message ended before it was acknowledged; another member may have it now."""

    offset: Offset

    def __init__(self, name: str, offset: Offset) -> None:
        self.offset = offset
        super().__init__(
            name,
            f"the lease on the message at offset {offset} has ended and another member may have it now; "
            "use a longer lease, or extend() it while working",
        )


class HandlerError(ConsumerError):
    """A service has ended: a message used up its attempts, and there is no dead-letter channel to send it to.

    It is not acknowledged: whoever serves the name next begins with it. The handler's own error is the cause.
    """

    offset: Offset
    attempts: int
    """How often it was tried."""

    def __init__(
        self, name: str, offset: Offset, attempts: int, reason: str, *, path: str | os.PathLike[str] | None = None
    ) -> None:
        self.offset = offset
        self.attempts = attempts
        super().__init__(
            name,
            f"the message at offset {offset} was given up after {attempts} attempt{'s' * (attempts != 1)}: {reason}; "
            "with a dead_letter such messages are kept there, and others go on",
            path=path,
        )


# Storage


class StorageError(FileChannelError):
    """The files could not be read or written as they should."""

    reason: str

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class DiskFullError(StorageError):
    """There is no room on the disk. Nothing was written; messages accepted before stay readable."""

    path: Path
    needed: int
    """So many bytes; 0 if it was for one more name in a directory, or one more file on the disk."""

    def __init__(self, path: str | os.PathLike[str], needed: int) -> None:
        self.path = Path(path)
        self.needed = needed
        what = f"{needed:,} bytes" if needed else "one more file"
        super().__init__(f"no room for {what} at {self.path}; nothing was written, make room and try again")


class DataExpiredError(StorageError):
    """Messages were dropped before this receiver got to them. Raised once; the next receive goes on."""

    missed: int
    oldest: Offset

    def __init__(self, missed: int, oldest: Offset) -> None:
        self.missed = missed
        self.oldest = oldest
        super().__init__(
            f"{missed:,} messages were dropped before they were received; receive again to go on at offset {oldest}"
        )


class CorruptRecordError(StorageError):
    """Stored bytes are damaged."""

    segment: str
    """The file name of the segment."""
    offset: Offset
    path: Path | None
    """The channel's directory, if known."""

    def __init__(
        self, segment: str, offset: Offset, reason: str, *, path: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(
            f"{segment} is damaged at offset {offset}: {reason}; open the channel with on_corruption='skip' to go on "
            f"at the next valid record, {repair_command(path)} leaves out for good what cannot be read"
        )
        self.segment = segment
        self.offset = offset
        self.reason = reason
        self.path = _path(path)


class UnexpectedFileError(StorageError, OSError):
    """Something else has the name of one of the channel's files. It was neither followed nor read nor changed."""

    path: Path
    found: str
    """What is there, such as "a symbolic link"."""
    wanted: str
    """What should be there, such as "a regular file"."""
    channel: Path | None
    """The channel's directory, if known."""
    linked: bool
    """Whether it is the channel's file, but has names (hard links) outside of the channel."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        found: str,
        wanted: str = "a regular file",
        *,
        channel: str | os.PathLike[str] | None = None,
        linked: bool = False,
    ) -> None:
        self.path = Path(path)
        self.found = found
        self.wanted = wanted
        self.channel = _path(channel)
        self.linked = linked
        advice = (
            f"because a write would change it under its other names as well: {repair_command(channel)} replaces it by "
            "a copy"
            if linked
            else f"because it may lead out of the channel: find out who put it there, then {self._advice()}"
        )
        super().__init__(f"{self.path} is {found}, not {wanted}; it was left alone, {advice}")

    def _advice(self) -> str:
        """Return what to do; `repair` does not help where it needs the file itself."""
        if self.wanted == "a directory":
            return "put the directory itself in its place"
        if self.channel is not None and self.path == self.channel / "lock":
            return f"remove it: {removing(self.path, is_directory=self.found == 'a directory')}"
        if self.channel is not None and self.path.parent.name in ("segments", "consumers", "producers"):
            return f"{repair_command(self.channel)} puts it aside and makes the channel whole"
        return f"remove it; {repair_command(self.channel)} makes the channel whole"


class UnsupportedFormatError(StorageError):
    """The files are of a format that this installation does not read. Nothing was changed."""

    found: int | str
    supported: int | str
    advice: str
    """What to do about it."""
    path: Path | None
    """The channel's directory, if known."""

    def __init__(
        self,
        found: int | str,
        supported: int | str,
        advice: str = "install a newer filechannel",
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Take a format version or, as text, what else is missing; *advice* says what to do about it."""
        self.found = found
        self.supported = supported
        self.advice = advice
        self.path = _path(path)
        super().__init__(
            f"{_channel(self.path)} has {_format_name(found)}, but only {_format_name(supported)} is supported; "
            f"nothing was changed, {advice}"
        )


def repair_command(path: str | os.PathLike[str] | None, *options: str) -> str:
    """Return the command that repairs a channel, for a sentence that a person reads."""
    where = "CHANNEL" if path is None else path_word(os.fspath(path))
    return command("filechannel", "repair", *options, where, "--apply")


def verify_command(path: str | os.PathLike[str]) -> str:
    """Return the command that checks a channel, for a sentence that a person reads."""
    return command("filechannel", "verify", path_word(os.fspath(path)))


def _path(path: str | os.PathLike[str] | None) -> Path | None:
    return None if path is None else Path(path)


def _channel(path: Path | None) -> str:
    return "the channel" if path is None else f"the channel at {path}"


def _holder(pid: int | None, host: str | None, since: datetime | None) -> str:
    text = "another process" if pid is None else f"process {pid}"
    if host is not None:
        text += f" on {host}"
    if since is not None:
        text += f" since {since.isoformat(sep=' ', timespec='seconds')}"
    return text


def _format_name(found: int | str) -> str:
    return f"format version {found}" if isinstance(found, int) else found


def storage_error(what: str, error: OSError) -> StorageError:
    """Return what to raise instead of an error of the operating system: what failed, why, and what to do about it."""
    why = error.strerror or str(error) if error.filename is None else f"{error.strerror}: {error.filename}"
    advice = advice_for(error)
    return StorageError(f"{what}: {why}" if advice is None else f"{what}: {why}; {advice}")


def advice_for(error: OSError) -> str | None:
    """Return what to do about an error of the operating system in a channel, if that is known."""
    return _ADVICE.get(error.errno or 0)


_ADVICE = {
    errno.EMFILE: "this process has no file descriptor left: close files that it does not need, or raise its limit "
    "(ulimit -n, LimitNOFILE=)",
    errno.ENFILE: "the system has no file descriptor left: end processes that hold many, or raise fs.file-max",
    errno.ENOMEM: "there is no memory left, or this process has too many maps: open fewer channels, or raise "
    "vm.max_map_count",
    errno.EACCES: "check who may read and write it and its parents",
    errno.EPERM: "check who may read and write it and its parents, and whether it is immutable",
    errno.EROFS: "the file system is mounted read-only: mount it for writing, or open the channel with readonly=True",
    errno.EFBIG: "this process may not make files of that size: raise its limit (ulimit -f, LimitFSIZE=)",
    errno.EIO: "the disk failed: look into the log of the kernel",
    errno.ENOENT: "a part of the channel was moved or deleted: put it back, or open the channel where it is now",
    errno.ENOTDIR: "a part of the channel was replaced: put it back, or open the channel where it is now",
    errno.ESTALE: "the file system was replaced meanwhile: close the channel, and open it again",
}


@final
class storage_errors:  # noqa: N801 - used like a function
    """Raise `StorageError` for what the operating system refuses in a block; other errors are left as they are."""

    __slots__ = ("_path", "_what")

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Translate what ended it. A timeout and the misuse of a read-only channel are errors of their own."""
        ours = FileChannelError, TimeoutError, io.UnsupportedOperation
        if isinstance(error, OSError) and not isinstance(error, ours):
            raise storage_error(f"{self._path}: {self._what}", error) from error


ClosedResourceError = anyio.ClosedResourceError
"""For the layers that know nothing of event loops: a map raises it once it is closed."""


class Busy(anyio.WouldBlock):
    """Another writer has the channel right now, and this thread must not sleep: it runs an event loop."""


class NoRoomYetError(ChannelFullError, Busy):
    """There is no room right now, and whoever can wait does."""
