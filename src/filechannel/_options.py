"""The options of a channel: frozen, keyword-only, validated.

``ChannelOptions`` is what a user passes. Every field may stay unset, and an unset field never conflicts with what is
stored. It resolves into two complete sets: ``StoredOptions``, which the manifest stores for every process that opens
the channel, and ``OpenOptions``, which apply to one open. ``OPTIONS`` has one row per option: its scope, its default,
what is allowed and how it is written in the manifest. To add an option, add a row there, a field in ``ChannelOptions``
and a field in the class that its scope names.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, cast, final

from . import _checks as checks
from ._errors import OptionsMismatchError
from ._policies import Capacity, Compression, Durability, Retention

__all__ = [
    "OPTIONS",
    "UNSET",
    "Capacity",
    "ChannelOptions",
    "Compression",
    "Durability",
    "OpenOptions",
    "OptionScope",
    "Retention",
    "StoredOptions",
    "UnsetType",
]

MIN_SEGMENT_SIZE: Final = 4096
MAX_SEGMENT_SIZE: Final = 1 << 40
DEFAULT_SEGMENT_SIZE: Final = 64 << 20
MAX_SPARE_SEGMENTS: Final = 64
SEGMENTS_IN_CAPACITY: Final = 4
"""Capacity is freed one segment at a time. With fewer segments, each step would free a large part of it."""
MAX_MESSAGE_SIZE: Final = (1 << 30) - 1
"""The largest length that the 30 length bits of a record can store."""

OnCorruption: TypeAlias = Literal["raise", "skip"]
CursorFlush: TypeAlias = int | float | Literal["fsync"]
"""An int is a number of messages, a float a number of seconds."""


@final
class UnsetType(enum.Enum):
    """The type of ``UNSET``, the value of an option that was not given."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> Literal[False]:
        return False


UNSET: Final = UnsetType.UNSET


class OptionScope(enum.Enum):
    """Which opens share the value of an option, and when it can change."""

    FIXED = "fixed at creation"
    CHANNEL = "channel-wide, changed by configure()"
    OPEN = "per open"


@final
@dataclass(frozen=True, slots=True)
class Option:
    """One row of ``OPTIONS``: everything about an option except its type."""

    scope: OptionScope
    default: object
    check: checks.Check
    dump: Callable[[object], object] = lambda value: value
    load: Callable[[object], object] = lambda value: value


@final
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ChannelOptions:
    """The options of a channel. An unset option means "as stored", or the default for a new channel.

    An invalid value raises ``TypeError`` or ``ValueError``; the message names the option and what is allowed.
    """

    segment_size: int | UnsetType = UNSET
    """Fixed at creation: the size of a segment file in bytes, 4 KiB to 1 TiB. Default 64 MiB."""
    max_message_size: int | UnsetType = UNSET
    """Fixed at creation: the largest encoded message in bytes. The maximum and the default are 1 GiB - 1."""
    mode: int | UnsetType = UNSET
    """Fixed at creation: permission bits of the files. The owner's read and write bits must be set. Default 0o600."""
    durability: Durability | UnsetType = UNSET
    """Channel-wide: when a sent message is on disk. Default ``Durability.OS``."""
    capacity: Capacity | UnsetType | None = UNSET
    """Channel-wide: how much may be stored and not consumed. Default None: limited by the disk only."""
    retention: Retention | UnsetType = UNSET
    """Channel-wide: how long messages are kept. Default ``Retention()``: until every consumer has consumed them."""
    compression: Compression | UnsetType = UNSET
    """Channel-wide: how finished segments are compressed. Default ``Compression(method="none")``: no compression."""
    spare_segments: int | UnsetType = UNSET
    """Channel-wide: how many files of reclaimed segments are kept in the free list to be reused, 0 to 64. Default 2.
    With 0, the next segment is not prepared in advance either."""
    max_mapped_segments: int | UnsetType = UNSET
    """Per open: how many segments may be mapped at once, files of the free list included; at least 2. Default 8. If
    more readers than that are far behind, they share the maps, and each read may have to map a segment again."""
    spin: float | UnsetType = UNSET
    """Per open: seconds to spin for a message before sleeping. Uses a CPU core, saves microseconds. Default 0."""
    poll_interval: float | UnsetType = UNSET
    """Per open: the longest pause in seconds between two polls if wakeups are impossible, as with readonly. Default
    0.05."""
    on_corruption: OnCorruption | UnsetType = UNSET
    """Per open: what to do at a damaged record: ``"raise"`` (default), or ``"skip"`` to the next valid record."""
    cursor_flush: CursorFlush | UnsetType | None = UNSET
    """Per open: how often positions of receivers are flushed to disk, to survive a power cut: after a number of
    messages (an int), a number of seconds (a float), or ``"fsync"``: before a message is returned. Default None:
    together with the data. For receivers with acknowledgement, acks are counted instead of messages, and ``"fsync"``
    flushes after each ack, in the background."""
    validate: bool | UnsetType = UNSET
    """Per open: validate the fields of sent messages too, not only their type. Default False."""

    def __post_init__(self) -> None:
        """Check the options that are set."""
        _check(self)
        if self.segment_size is not UNSET and self.capacity is not UNSET:
            _check_segments_fit(self.segment_size, self.capacity)

    def resolve(self, disk: int | None = None) -> StoredOptions:
        """Return the options for the manifest of a new channel: those set here, and defaults for the rest.

        If a capacity is set but no segment size, segments are made small enough for that capacity; *disk* is the size
        of the file system, if known. Raises ``ValueError`` if the capacity does not hold four segments.
        """
        values = _complete(self, StoredOptions)
        size = self.capacity.in_bytes(disk) if isinstance(self.capacity, Capacity) else None
        if self.segment_size is UNSET and size is not None:
            values["segment_size"] = min(DEFAULT_SEGMENT_SIZE, _largest_segment(size))
        options = StoredOptions(**values)
        options.check_disk(disk)
        return options

    def per_open(self) -> OpenOptions:
        """Return the options that apply to this open only: those set here, and defaults for the rest."""
        return OpenOptions(**_complete(self, OpenOptions))

    def as_stored(self) -> ChannelOptions:
        """Return these options without those that `configure` can change: the stored values apply instead."""
        return replace(self, **{name: UNSET for name in _given(self) if OPTIONS[name].scope is OptionScope.CHANNEL})

    def check_against(self, stored: StoredOptions, path: Path | None = None) -> None:
        """Raise ``OptionsMismatchError`` if an option set here differs from *stored*, the options of *path*."""
        for name, given in _given(self).items():
            if OPTIONS[name].scope is not OptionScope.OPEN and given != getattr(stored, name):
                raise _mismatch(name, stored, given, path)

    def __repr__(self) -> str:
        return _shown(self)


@final
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class StoredOptions:
    """The options in the manifest: complete, validated, and the same for every process that opens the channel."""

    segment_size: int
    max_message_size: int
    mode: int
    durability: Durability
    capacity: Capacity | None
    retention: Retention
    compression: Compression
    spare_segments: int

    def __post_init__(self) -> None:
        """Check every value, since it may come from a damaged manifest, and that the values are compatible."""
        _check(self)
        _check_segments_fit(self.segment_size, self.capacity)

    def check_disk(self, disk: int | None) -> None:
        """Raise ``ValueError`` if a capacity given as a fraction of *disk* bytes does not hold four segments."""
        size = None if self.capacity is None else self.capacity.in_bytes(disk)
        if self.capacity is not None and size is not None and size < SEGMENTS_IN_CAPACITY * self.segment_size:
            raise ValueError(
                f"capacity fraction={self.capacity.fraction} is {size} bytes in this file system: "
                f"must be at least four segments, {SEGMENTS_IN_CAPACITY * self.segment_size}"
            )

    def changed_by(self, options: ChannelOptions, path: Path | None = None) -> StoredOptions:
        """Return these options with the channel-wide options set in *options*; *path* is the channel's directory.

        Raises ``OptionsMismatchError`` for another value of an option that is fixed at creation, and ``ValueError`` for
        an option that is not stored because it applies to one open.
        """
        values = {name: getattr(self, name) for name in _names(StoredOptions)}
        for name, given in _given(options).items():
            scope = OPTIONS[name].scope
            if scope is OptionScope.OPEN:
                raise ValueError(f"{name} applies to one open and is not stored: pass it to open_channel")
            if scope is OptionScope.FIXED and given != values[name]:
                raise _mismatch(name, self, given, path)
            values[name] = given
        return StoredOptions(**values)

    def to_json(self) -> dict[str, object]:
        """Return a JSON object with every option."""
        return {name: OPTIONS[name].dump(getattr(self, name)) for name in _names(StoredOptions)}

    @staticmethod
    def from_json(value: object) -> StoredOptions:
        """Reverse ``to_json``. Raise ``ValueError`` that says what is wrong with a damaged or unknown *value*.

        A missing channel-wide option gets its default: the channel is older than the option.
        """
        names = _names(StoredOptions)
        try:
            checks.instance_of(dict, "a JSON object")("options", value)
            items = cast("dict[object, object]", value)
            if unknown := [name for name in items if name not in names]:
                raise ValueError(f"unknown option {unknown[0]!r}")
            values: dict[str, Any] = {name: _load(name, items) for name in names}
            return StoredOptions(**values)
        except TypeError as error:
            raise ValueError(str(error)) from error

    def __repr__(self) -> str:
        return _shown(self)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class OpenOptions:
    """The options of one open: complete, validated, not stored."""

    max_mapped_segments: int
    spin: float
    poll_interval: float
    on_corruption: OnCorruption
    cursor_flush: CursorFlush | None
    validate: bool

    def __post_init__(self) -> None:
        """Check every value."""
        _check(self)


OPTIONS: Final[Mapping[str, Option]] = MappingProxyType(
    {
        "segment_size": Option(
            OptionScope.FIXED, DEFAULT_SEGMENT_SIZE, checks.integer(MIN_SEGMENT_SIZE, MAX_SEGMENT_SIZE)
        ),
        "max_message_size": Option(OptionScope.FIXED, MAX_MESSAGE_SIZE, checks.integer(1, MAX_MESSAGE_SIZE)),
        "mode": Option(OptionScope.FIXED, 0o600, checks.permission_bits),
        "durability": Option(
            OptionScope.CHANNEL,
            Durability.OS,
            checks.instance_of(Durability, "Durability.OS, Durability.FSYNC or Durability.interval(seconds)"),
            dump=lambda value: cast("Durability", value).to_json(),
            load=Durability.from_json,
        ),
        "capacity": Option(
            OptionScope.CHANNEL,
            None,
            checks.none_or(checks.instance_of(Capacity, "Capacity(...) or None")),
            dump=lambda value: None if value is None else cast("Capacity", value).to_json(),
            load=lambda value: None if value is None else Capacity.from_json(value),
        ),
        "retention": Option(
            OptionScope.CHANNEL,
            Retention(),
            checks.instance_of(Retention, "Retention(...)"),
            dump=lambda value: cast("Retention", value).to_json(),
            load=Retention.from_json,
        ),
        "compression": Option(
            OptionScope.CHANNEL,
            Compression(method="none"),
            checks.instance_of(Compression, "Compression(...)"),
            dump=lambda value: cast("Compression", value).to_json(),
            load=Compression.from_json,
        ),
        "spare_segments": Option(OptionScope.CHANNEL, 2, checks.integer(0, MAX_SPARE_SEGMENTS)),
        "max_mapped_segments": Option(OptionScope.OPEN, 8, checks.integer(2)),
        "spin": Option(OptionScope.OPEN, 0.0, checks.seconds_or_zero),
        "poll_interval": Option(OptionScope.OPEN, 0.05, checks.seconds),
        "on_corruption": Option(OptionScope.OPEN, "raise", checks.one_of("raise", "skip")),
        "cursor_flush": Option(OptionScope.OPEN, None, checks.messages_or_seconds),
        "validate": Option(OptionScope.OPEN, False, checks.instance_of(bool, "True or False")),
    }
)


def _names(form: type[StoredOptions] | type[OpenOptions] | type[ChannelOptions]) -> list[str]:
    return list(form.__dataclass_fields__)


def _given(options: ChannelOptions | StoredOptions) -> dict[str, Any]:
    values = {name: getattr(options, name) for name in _names(type(options))}
    return {name: value for name, value in values.items() if value is not UNSET}


def _shown(options: ChannelOptions | StoredOptions) -> str:
    given = ", ".join(f"{name}={checks.shown(name, value)}" for name, value in _given(options).items())
    return f"{type(options).__name__}({given})"


def _check(options: ChannelOptions | StoredOptions | OpenOptions) -> None:
    for name in _names(type(options)):
        value = getattr(options, name)
        if value is not UNSET:
            OPTIONS[name].check(name, value)


def _complete(options: ChannelOptions, form: type[StoredOptions] | type[OpenOptions]) -> dict[str, Any]:
    given = _given(options)
    return {name: given.get(name, OPTIONS[name].default) for name in _names(form)}


def _largest_segment(max_bytes: int) -> int:
    """Return the largest power of two that fits into a capacity four times, but at least the smallest segment size."""
    return 1 << max(max_bytes // SEGMENTS_IN_CAPACITY, MIN_SEGMENT_SIZE).bit_length() - 1


def _check_segments_fit(segment_size: int, capacity: Capacity | None) -> None:
    if capacity is None or capacity.max_bytes is None or segment_size <= capacity.max_bytes // SEGMENTS_IN_CAPACITY:
        return
    raise ValueError(
        f"segment_size={segment_size} with capacity max_bytes={capacity.max_bytes}: "
        f"must be at most a quarter of it, {capacity.max_bytes // SEGMENTS_IN_CAPACITY}"
    )


def _load(name: str, items: dict[object, object]) -> object:
    option = OPTIONS[name]
    if name in items:
        return option.load(items[name])
    if option.scope is OptionScope.FIXED:
        raise ValueError(f"option {name!r} is missing")
    return option.default


def refuse_other_options(names: Mapping[str, object]) -> None:
    """Raise ``TypeError`` for keyword arguments that ``configure`` does not accept, and say why."""
    for name in names:
        scope = OPTIONS[name].scope if name in OPTIONS else None
        if scope is OptionScope.FIXED:
            suggestion = "it is fixed at creation; create another channel with it and copy the messages there"
            raise TypeError(f"configure() cannot change {name}: {suggestion}")
        if scope is OptionScope.OPEN:
            raise TypeError(f"configure() cannot change {name}: it is not stored; pass it to open_channel()")
        raise TypeError(f"configure() got an unexpected keyword argument {name!r}")


def _mismatch(name: str, stored: StoredOptions, given: object, path: Path | None) -> OptionsMismatchError:
    suggestion = None
    if OPTIONS[name].scope is OptionScope.CHANNEL:
        change = f"channel.configure({name}={checks.shown(name, given)})"
        suggestion = f"leave {name} out to use the stored value; after that, '{change}' can change it"
    return OptionsMismatchError(name, getattr(stored, name), given, suggestion, path=path)
