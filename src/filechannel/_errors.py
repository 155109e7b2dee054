"""All exceptions of the package. The sections of the module group them by when they are raised.

::

    FileChannelError                    the base class
    ├── ChannelNotFoundError            opening: there is nothing at the path
    ├── NotAChannelError                opening: there is something else at the path
    ├── ChannelLockedError              opening, sending, repair: another process holds the channel
    ├── ChannelMismatchError            Spark: the path leads to another channel, here or on another host
    ├── UntrustedChannelError           opening with strict_owner: other users can change or read it
    ├── OptionsMismatchError            opening: an option contradicts the stored one
    ├── SchemaMismatchError             opening: the message type contradicts the stored schema
    ├── ChannelSealedError              sending: the channel is sealed
    ├── ChannelFullError                sending: no capacity now (also an anyio.WouldBlock); nothing was written
    ├── MessageTooLargeError            sending: nothing was written
    ├── CodecError                      sending: a value that cannot be encoded; nothing was written
    │   ├── MessageTypeError            … because of its type (also a TypeError)
    │   └── DecodeError                 receiving: an intact record that does not decode
    ├── ConsumerError                   receiving under a name
    │   ├── ConsumerBusyError           opening a receiver: the name has a live owner (also an anyio.BusyResourceError)
    │   ├── ConsumerMismatchError       opening a receiver: the name is of another kind, single or group
    │   ├── ConsumerDamagedError        opening a receiver: the position of the name cannot be read
    │   ├── UnknownConsumerError        there is no consumer of that name
    │   ├── AckError                    acknowledging a message that is not outstanding
    │   ├── LeaseExpiredError           acknowledging after the lease ended
    │   └── HandlerError                serving: attempts used up, and no dead-letter channel is set
    └── StorageError                    any operation: the files cannot be read or written as expected
        ├── DiskFullError               opening, sending, storing a position: nothing was written
        ├── DataExpiredError            receiving: the next messages were dropped
        ├── CorruptRecordError          receiving, shipping: damaged bytes
        ├── UnexpectedFileError         opening: a link, a FIFO or the like in place of a file (also an OSError)
        └── UnsupportedFormatError      opening: written by a newer release, or needs an extra

Each class builds its message from typed attributes, and pickles and copies with both. A closed object, the end of a
stream and an empty channel raise anyio's own ``ClosedResourceError``, ``EndOfStream`` and ``WouldBlock``. Wrong
arguments raise ``ValueError`` or ``TypeError``.

`Busy` and `CapacityReachedError` are not exported; ``except anyio.WouldBlock`` catches both, and ``except
ChannelFullError`` the second. Maintenance in the background raises nothing: it logs an error, counts it in the
statistics and retries.
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
from ._shell_quoting import command, path_word, removing

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


# Base classes


class FileChannelError(Exception):
    """The base class of all errors of this package: ``except FileChannelError`` catches them all."""

    def __init__(self, message: str) -> None:
        # Not super(): an error that also inherits from an anyio error must not let anyio change the message.
        Exception.__init__(self, message)

    def __reduce__(self) -> tuple[object, ...]:
        """Restore message and attributes unchanged, whatever arguments the constructor takes."""
        return _restore, (type(self), *self.args), self.__dict__.copy()


def _restore(cls: type[FileChannelError], *args: object) -> FileChannelError:
    """Create an error as pickle does: without calling its constructor."""
    error = cls.__new__(cls, *args)
    error.args = args  # OSError.__new__ leaves this to the constructor
    return error


class _ItemError(FileChannelError):
    """An error about one value, which may be an item of a batch."""

    index: int | None
    """The index of the item in the batch, counted from 0; None for a single message."""

    def __init__(self, message: str, index: int | None) -> None:
        super().__init__(message)
        self.index = index

    def at(self, index: int) -> Self:
        """Return the same error, with the same cause, for item *index* of a batch."""
        error = copy.copy(self)
        error.index = index
        error.__cause__ = self.__cause__
        return error

    def __str__(self) -> str:
        message = super().__str__()
        return message if self.index is None else f"item {self.index} of the batch: {message}"


# Opening


class ChannelNotFoundError(FileChannelError):
    """There is no channel at the path, and the call does not create one."""

    path: Path
    """The path that was given."""

    def __init__(self, path: str | os.PathLike[str], *, readonly: bool = False) -> None:
        """The message says how to create the channel, unless it was opened *readonly*."""
        self.path = Path(path)
        suggestion = ": readonly=True creates nothing" if readonly else ", or open it with create=True"
        super().__init__(f"there is no channel at {self.path}; check the path{suggestion}")


class NotAChannelError(FileChannelError):
    """What is at the path is not a channel, or not a complete one any more. Nothing was changed."""

    path: Path
    """The path that was given."""
    reason: str
    """Why it is not a channel."""
    advice: str | None
    """How to repair it, if it was a channel before."""

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
        """Return the error for a channel whose manifest is damaged or missing."""
        repair = repair_command(path, "--like", "OTHER")
        return cls(
            path,
            reason,
            f"{repair} creates it again from OTHER: a channel with the same message type, or a copy of the file",
        )


class ChannelLockedError(FileChannelError):
    """Another process holds the channel, and this kind of access cannot be shared."""

    path: Path
    """The channel's directory."""
    pid: int | None
    """The process id of the holder on its own host, if known."""
    host: str | None
    """The host name of the holder, if known."""
    since: datetime | None
    """When the holder acquired it (an aware datetime), if known."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        pid: int | None,
        host: str | None,
        since: datetime | None,
        reason: str | None = None,
    ) -> None:
        """*reason* says why access cannot be shared, unless it is the kind of access."""
        self.path = Path(path)
        self.pid = pid
        self.host = host
        self.since = since
        super().__init__(
            f"{self.path} is held by {_holder(pid, host, since)}{f' ({reason})' if reason else ''}; "
            "close it there, or wait until it is released"
        )


class UntrustedChannelError(FileChannelError):
    """Other users can change or read the channel, and it was opened with `strict_owner=True`. Nothing was changed."""

    path: Path
    """The channel's directory."""
    reason: str
    """Which users can change or read it, and how."""
    owner: int | None
    """The user, neither this one nor root, who owns the directory or a part of it; None if there is none."""
    mode: int | None
    """The stored permission bits, if this open did not ask for them; None if it did."""
    parts: tuple[str, ...]
    """The parts whose permissions are wider than the channel's mode; "." is the directory itself."""

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
        suggestions = [] if owner is None else ["change the owner of the directory and its files"]
        if parts:
            suggestions.append("remove those permissions with chmod")
        if mode is not None and mode & ~0o600:
            suggestions.append(f"give options=ChannelOptions(mode=0o{mode:o}) if that mode is intended")
        text = " and ".join(suggestions) or "correct this"
        super().__init__(
            f"{self.path} is not under the control of this user alone: {reason}. Nothing was changed. "
            f"{text[0].upper()}{text[1:]}, or open it without strict_owner=True if you trust those users"
        )


class OptionsMismatchError(FileChannelError):
    """An option was given explicitly and differs from the stored one."""

    option: str
    """The name of the option."""
    stored: object
    """The value in the channel."""
    given: object
    """The value that was passed."""
    path: Path | None
    """The channel's directory, if known."""

    def __init__(
        self,
        option: str,
        stored: object,
        given: object,
        suggestion: str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        """*suggestion* says what the user can do; None stands for an option that is fixed at creation."""
        self.option = option
        self.stored = stored
        self.given = given
        self.path = _path(path)
        if suggestion is None:
            suggestion = (
                f"leave {option} out to use the stored value, or use another directory: it is fixed at creation"
            )
        super().__init__(
            f"{_channel(self.path)} has {option}={shown(option, stored)}, not {shown(option, given)}; {suggestion}"
        )


class SchemaMismatchError(FileChannelError):
    """The message type and the channel's schema cannot decode each other's messages."""

    field: str
    """Where they differ: a dotted path such as ``Order.lines[].sku``."""
    expected: str
    """What the channel's schema has there."""
    found: str
    """What the given message type has there."""
    path: Path | None
    """The channel's directory, if known."""

    def __init__(
        self,
        field: str,
        expected: str,
        found: str,
        suggestion: str = (
            "open it with a matching type; after that, 'channel.configure(schema=...)' can change the schema"
        ),
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        """*suggestion* says what the user can do."""
        self.field = field
        self.expected = expected
        self.found = found
        self.path = _path(path)
        super().__init__(f"{field}: {_channel(self.path)} has {expected}, but the type given has {found}; {suggestion}")


class ChannelMismatchError(FileChannelError):
    """A path leads to another channel than before, here or on another host. Nothing was read or written there."""

    path: Path
    """The path that leads to it."""
    expected: str
    """The channel that was there before, by its id, and the segment if a copy has another one."""
    found: str
    """The channel that is there now."""
    host: str
    """The host on which the path leads to it."""

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
    """The channel was sealed: it is complete and accepts no more messages."""

    path: Path
    """The channel's directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        super().__init__(f"{self.path} is sealed and accepts no more messages; send to another channel")


class ChannelFullError(FileChannelError, anyio.WouldBlock):
    """The channel is full until a consumer receives more, or data is removed. Nothing was written."""

    path: Path
    """The channel's directory."""
    size: int
    """The bytes that did not fit, record headers included."""
    messages: int
    """The number of messages that did not fit."""
    has_consumers: bool
    """Whether any consumer is registered. Without one, everything that is stored counts."""

    def __init__(self, path: str | os.PathLike[str], size: int, messages: int, *, has_consumers: bool = True) -> None:
        self.path = path if isinstance(path, Path) else Path(path)  # raised often, and making a Path is slow
        self.size = size
        self.messages = messages
        self.has_consumers = has_consumers
        what = "another message" if messages == 1 else f"{messages:,} messages"
        until, suggestion = "its slowest consumer reads more", "consumers() shows which one that is"
        if not has_consumers:
            until = "something is deleted: every stored message counts, because no consumer is registered"
            suggestion = "register a consumer that receives, or call purge()"
        super().__init__(
            f"{self.path} is full: no capacity for {what} ({size:,} bytes) until {until}; "
            f"nothing was sent, {suggestion}"
        )


class MessageTooLargeError(_ItemError):
    """A message or batch can never fit into the channel. Nothing was written."""

    size: int
    """How large the message or batch is."""
    limit: int
    """The largest size that fits."""
    unit: str
    """The unit of both: "bytes" or "messages"."""

    def __init__(self, size: int, limit: int, index: int | None = None, *, unit: str = "bytes") -> None:
        self.size = size
        self.limit = limit
        self.unit = unit
        super().__init__(
            f"{size:,} {unit} exceed the limit of the channel, {limit:,}; "
            "send it in parts, or use a channel with a larger limit",
            index,
        )


class CodecError(_ItemError):
    """A value cannot be encoded as a message of the channel. Nothing was written."""

    reason: str
    """What is wrong with the value."""

    def __init__(self, reason: str, index: int | None = None) -> None:
        self.reason = reason
        super().__init__(reason, index)


class MessageTypeError(CodecError, TypeError):
    """A value is not of the channel's message type. Nothing was written."""

    expected: str
    """The channel's message type."""
    found: str
    """The type of the value."""

    def __init__(self, expected: str, found: str, index: int | None = None) -> None:
        self.expected = expected
        self.found = found
        super().__init__(f"the channel accepts {expected}, not {found}", index)


# Receiving


class DecodeError(CodecError):
    """A record is intact but does not decode.

    The position does not move: ``seek(error.next_offset)`` skips the record. A member of a group acknowledges it with
    ``undecodable(error).ack()`` instead.
    """

    offset: Offset
    """Where the record begins."""
    next_offset: Offset
    """Where the next record begins."""
    payload: bytes
    """The bytes of the message."""

    def __init__(
        self, offset: Offset, next_offset: Offset, reason: str, payload: bytes, *, in_group: bool = False
    ) -> None:
        self.offset = offset
        self.next_offset = next_offset
        self.payload = payload
        self.reason = reason
        suggestion = "acknowledge it with undecodable(error).ack()" if in_group else f"skip it with seek({next_offset})"
        _ItemError.__init__(self, f"the record at offset {offset} does not decode: {reason}; {suggestion}", None)


# Consuming: registering, acknowledging and serving under a name


class ConsumerError(FileChannelError):
    """The base class of errors about a named consumer."""

    name: str
    """The name of the consumer."""
    reason: str
    """What is wrong."""
    path: Path | None
    """The channel's directory, if known."""

    def __init__(self, name: str, reason: str, *, path: str | os.PathLike[str] | None = None) -> None:
        self.name = name
        self.reason = reason
        self.path = _path(path)
        where = "" if path is None else f" of {self.path}"
        super().__init__(f"consumer {name!r}{where}: {reason}")


class ConsumerBusyError(ConsumerError, anyio.BusyResourceError):
    """The consumer name has a live owner; a name has one owner at a time."""

    pid: int | None
    """The process id of the owner on its own host, if known."""
    host: str | None
    """The host name of the owner, if known."""
    since: datetime | None
    """When the owner acquired the name (an aware datetime), if known."""

    def __init__(
        self,
        name: str,
        pid: int | None,
        host: str | None,
        since: datetime | None,
        suggestion: str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.pid = pid
        self.host = host
        self.since = since
        suggestion = suggestion or (
            "share it inside one process with clone(), over many processes with group(), or choose another name"
        )
        super().__init__(name, f"in use by {_holder(pid, host, since)}; {suggestion}", path=path)


class ConsumerMismatchError(ConsumerError):
    """The name is registered as another kind of consumer."""

    found: str
    """The kind that is registered."""
    wanted: str
    """The kind that was asked for."""

    def __init__(self, name: str, found: str, wanted: str, *, path: str | os.PathLike[str] | None = None) -> None:
        self.found = found
        self.wanted = wanted
        super().__init__(
            name,
            f"registered as {found}, not {wanted}; choose another name, or remove it with remove_consumer()",
            path=path,
        )


class ConsumerDamagedError(ConsumerError):
    """The file of the consumer is damaged. Nothing was changed; until it is repaired, no data is reclaimed."""

    file: Path | None
    """The damaged file, if it belongs to a group whose position is intact; None if the position itself is lost."""
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
            reason = f"its position is damaged; {repair_command(path)} lets it start again at the oldest message"
        else:
            reason = (
                f"{self.file} is damaged ({problem}); close every process that uses the channel, then "
                f"{repair_command(path)} lets the group resume at its position"
            )
        super().__init__(name, f"{reason}, or remove it with remove_consumer()", path=path)


class UnknownConsumerError(ConsumerError):
    """No consumer of that name is registered."""

    def __init__(self, name: str, *, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(name, "no such consumer; consumers() lists the names", path=path)


class AckError(ConsumerError):
    """The acknowledged message is not outstanding: never received, acknowledged before, or redelivered."""


class LeaseExpiredError(ConsumerError):
    """The lease on a message ended before it was acknowledged; another member may have it now."""

    offset: Offset
    """The offset of the message."""

    def __init__(self, name: str, offset: Offset) -> None:
        self.offset = offset
        super().__init__(
            name,
            f"the lease on the message at offset {offset} has expired and another member may have received it; "
            "use a longer lease, or extend() it while working",
        )


class HandlerError(ConsumerError):
    """A service has ended: a message used up its attempts, and no dead-letter channel is set.

    The message is not acknowledged: the next service under this name starts with it. The handler's own error is the
    cause.
    """

    offset: Offset
    """The offset of the message."""
    attempts: int
    """The number of attempts."""

    def __init__(
        self, name: str, offset: Offset, attempts: int, reason: str, *, path: str | os.PathLike[str] | None = None
    ) -> None:
        self.offset = offset
        self.attempts = attempts
        super().__init__(
            name,
            f"the message at offset {offset} failed after {attempts} attempt{'s' * (attempts != 1)}: {reason}; "
            "with a dead_letter channel such messages are stored there, and the service continues",
            path=path,
        )


# Storage: any operation, when the files cannot be read or written as expected


class StorageError(FileChannelError):
    """The files could not be read or written as expected."""

    reason: str
    """What went wrong."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class DiskFullError(StorageError):
    """The disk is full. Nothing was written; messages accepted before stay readable."""

    path: Path
    """Where there was no space."""
    needed: int
    """The number of bytes needed; 0 if there was no space for another directory entry or another file."""

    def __init__(self, path: str | os.PathLike[str], needed: int) -> None:
        self.path = Path(path)
        self.needed = needed
        what = f"{needed:,} bytes" if needed else "one more file"
        super().__init__(
            f"the disk is full: no space for {what} at {self.path}; nothing was written, free disk space and try again"
        )


class DataExpiredError(StorageError):
    """Messages were dropped before this receiver received them. Raised once; the next receive resumes after them."""

    missed: int
    """The number of messages that were dropped."""
    oldest: Offset
    """The offset of the oldest stored message, where reading continues."""

    def __init__(self, missed: int, oldest: Offset) -> None:
        self.missed = missed
        self.oldest = oldest
        super().__init__(
            f"{missed:,} messages were dropped before they were received; receive again to resume at offset {oldest}"
        )


class CorruptRecordError(StorageError):
    """Stored bytes are damaged."""

    segment: str
    """The file name of the segment."""
    offset: Offset
    """The offset of the damage."""
    path: Path | None
    """The channel's directory, if known."""

    def __init__(
        self, segment: str, offset: Offset, reason: str, *, path: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(
            f"{segment} is damaged at offset {offset}: {reason}; open the channel with on_corruption='skip' to resume "
            f"at the next valid record, or run {repair_command(path)} to leave out permanently what cannot be read"
        )
        self.segment = segment
        self.offset = offset
        self.reason = reason
        self.path = _path(path)


class UnexpectedFileError(StorageError, OSError):
    """Something else has the name of one of the channel's files. It was not followed, read or changed."""

    path: Path
    """The path of the file."""
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
        suggestion = (
            f"because a write would change its other names too: {repair_command(channel)} replaces it with a copy"
            if linked
            else f"because it may lead out of the channel: find out which user created it, then {self._suggestion()}"
        )
        super().__init__(f"{self.path} is {found}, not {wanted}; it was left alone, {suggestion}")

    def _suggestion(self) -> str:
        """Return what the user can do; `repair` does not help if it needs the file itself."""
        if self.wanted == "a directory":
            return "put the directory itself in its place"
        if self.channel is not None and self.path == self.channel / "lock":
            return f"remove it: {removing(self.path, is_directory=self.found == 'a directory')}"
        if self.channel is not None and self.path.parent.name in ("segments", "consumers", "producers"):
            return f"{repair_command(self.channel)} moves it to quarantine and repairs the channel"
        return f"remove it; {repair_command(self.channel)} repairs the channel"


class UnsupportedFormatError(StorageError):
    """The files have a format that this installation cannot read. Nothing was changed."""

    found: int | str
    """The format version of the files, or what is missing."""
    supported: int | str
    """What this installation supports."""
    advice: str
    """What the user can do."""
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
        """Take a format version or, as text, what else is missing; *advice* says what the user can do."""
        self.found = found
        self.supported = supported
        self.advice = advice
        self.path = _path(path)
        super().__init__(
            f"{_channel(self.path)} has {_format_name(found)}, but only {_format_name(supported)} is supported; "
            f"nothing was changed, {advice}"
        )


# Texts of messages


def repair_command(path: str | os.PathLike[str] | None, *options: str, apply: bool = True) -> str:
    """Return the command that repairs a channel, or with ``apply=False`` reports what it would do, for a message."""
    where = "CHANNEL" if path is None else path_word(os.fspath(path))
    return command("filechannel", "repair", *options, where, *(("--apply",) if apply else ()))


def counted_messages(count: int) -> str:
    """Return a number of messages in words."""
    return "1 message" if count == 1 else f"{count:,} messages"


def verify_command(path: str | os.PathLike[str]) -> str:
    """Return the command that verifies a channel, for a message."""
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


# From OSError to StorageError


def storage_error(what: str, error: OSError) -> StorageError:
    """Return the error to raise instead of an `OSError`: what failed, why, and what the user can do."""
    why = error.strerror or str(error) if error.filename is None else f"{error.strerror}: {error.filename}"
    suggestion = suggestion_for(error)
    return StorageError(f"{what}: {why}" if suggestion is None else f"{what}: {why}; {suggestion}")


def suggestion_for(error: OSError) -> str | None:
    """Return what the user can do about an `OSError` in a channel; None if that is not known."""
    return _SUGGESTIONS.get(error.errno or 0)


_SUGGESTIONS = {
    errno.EMFILE: "this process has no file descriptor left: close files that it does not need, or raise its limit "
    "(ulimit -n, LimitNOFILE=)",
    errno.ENFILE: "the system has no file descriptor left: stop processes that hold many, or raise fs.file-max",
    errno.ENOMEM: "there is no memory left, or this process has too many maps: open fewer channels, or raise "
    "vm.max_map_count",
    errno.EACCES: "check the permissions of it and its parents",
    errno.EPERM: "check the permissions of it and its parents, and whether it is immutable",
    errno.EROFS: "mount the file system for writing",
    errno.EFBIG: "this process may not make files of that size: raise its limit (ulimit -f, LimitFSIZE=)",
    errno.EIO: "the disk failed: check the kernel's log (dmesg)",
    errno.ENOENT: "a part of the channel was moved or deleted: put it back, or open the channel where it is now",
    errno.ENOTDIR: "a part of the channel was replaced: put it back, or open the channel where it is now",
    errno.ESTALE: "the file system was replaced: close the channel, and open it again",
}


@final
class storage_errors:  # noqa: N801 - used like a function
    """Raise `StorageError` for an `OSError` of the block; other errors are not changed."""

    __slots__ = ("_path", "_what")

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Convert the error. A timeout and the misuse of a read-only channel are not converted."""
        ours = FileChannelError, TimeoutError, io.UnsupportedOperation
        if isinstance(error, OSError) and not isinstance(error, ours):
            raise storage_error(f"{self._path}: {self._what}", error) from error


# Inside the package: sending, flushing and maintenance


ClosedResourceError = anyio.ClosedResourceError
"""For layers that do not import an event loop library: a closed map raises it."""


class Busy(anyio.WouldBlock):
    """Another thread or process holds a lock of the channel, and this thread must not block: it runs an event loop."""


class CapacityReachedError(ChannelFullError, Busy):
    """No capacity is left now. A sender that can wait retries."""
