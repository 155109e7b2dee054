"""The policies of a channel: durability, capacity, retention and compression.

Each is frozen, validated when it is created, and stored in the manifest as plain JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Final, Literal, TypeAlias, TypeVar, cast, final

from . import _checks as checks

__all__ = ["Capacity", "Compression", "CompressionMethod", "Durability", "OnFull", "Retention"]

OnFull: TypeAlias = Literal["wait", "raise", "drop_oldest"]
CompressionMethod: TypeAlias = Literal["zstd", "lz4", "gzip", "none"]

SMALLEST_CAPACITY: Final = 4 * 4096
"""Four of the smallest segments: a full one can be deleted while another is appended to."""
_LEVELS: Final[Mapping[str, tuple[int, int]]] = {"zstd": (-7, 22), "lz4": (0, 16), "gzip": (1, 9), "none": (0, 0)}


@final
@dataclass(frozen=True, slots=True, repr=False)
class Durability:
    """When a sent message is on disk: ``OS``, ``interval(seconds)`` or ``FSYNC``.

    ``OS`` leaves writing to the kernel: a process crash loses nothing, a power cut loses what was not written yet.
    ``interval`` flushes in the background: a power cut loses at most that interval. ``FSYNC`` flushes before ``send``
    returns and before any receiver sees the message; concurrent senders share a flush.
    """

    kind: Literal["os", "interval", "fsync"]
    """Which of the three it is."""
    seconds: float | None = None
    """Only for ``interval``: the longest time between two flushes, in seconds."""

    OS: ClassVar[Durability]
    """The kernel decides when messages reach the disk. The default."""
    FSYNC: ClassVar[Durability]
    """``send`` returns when the message is on disk."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` or ``TypeError`` for anything but the three kinds."""
        if self.kind not in {"os", "interval", "fsync"}:
            raise ValueError(f"durability kind {self.kind!r}: must be 'os', 'interval' or 'fsync'")
        if self.kind == "interval":
            checks.seconds("durability interval", self.seconds)
        elif self.seconds is not None:
            raise ValueError(f"durability {self.kind!r} with seconds={self.seconds!r}: must be None")

    @staticmethod
    def interval(seconds: float) -> Durability:
        """Flush in the background, at least every *seconds* while there is something to flush."""
        return Durability("interval", seconds)

    def to_json(self) -> object:
        """Return ``"os"``, ``"fsync"`` or ``{"interval": seconds}``."""
        return self.kind if self.seconds is None else {"interval": self.seconds}

    @staticmethod
    def from_json(value: object) -> Durability:
        """Reverse ``to_json``. Raise ``ValueError`` if *value* is anything else."""
        if value == "os":
            return Durability.OS
        if value == "fsync":
            return Durability.FSYNC
        if isinstance(value, dict) and len(items := cast("dict[object, object]", value)) == 1:
            seconds = items.get("interval")
            if isinstance(seconds, int | float) and not isinstance(seconds, bool):
                return Durability.interval(seconds)
        raise ValueError(f"durability {value!r}: must be 'os', 'fsync' or {{'interval': seconds}}")

    def __repr__(self) -> str:
        return f"Durability.interval({self.seconds})" if self.kind == "interval" else f"Durability.{self.kind.upper()}"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by value; ``OS`` and ``FSYNC`` unpickle to the constants themselves."""
        return Durability.from_json, (self.to_json(),)


Durability.OS = Durability("os")
Durability.FSYNC = Durability("fsync")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """How much may be stored and not consumed, and what happens to a sender when the channel is full.

    The capacity counts records that the slowest registered consumer has not consumed; without consumers, all stored
    records. If several limits are given, the smallest applies. When the channel is full, a sender waits (``"wait"``),
    gets `ChannelFullError` (``"raise"``), or the oldest messages are dropped, one segment at a time
    (``"drop_oldest"``). Consumers whose messages were dropped get `DataExpiredError`, which says how many they missed.
    """

    max_bytes: int | None = None
    """Bytes of records, headers included; at least four segments."""
    max_messages: int | None = None
    """The number of messages."""
    fraction: float | None = None
    """A fraction of the size of the channel's file system, above 0 and at most 1; at least four segments."""
    on_full: OnFull = "wait"
    """What a sender does in a full channel: ``"wait"``, ``"raise"`` or ``"drop_oldest"``."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` or ``TypeError`` for a capacity without a limit, or with an invalid one."""
        if self.max_bytes is None and self.max_messages is None and self.fraction is None:
            raise ValueError("capacity without max_bytes, max_messages or fraction: name at least one limit")
        if self.max_bytes is not None:
            checks.integer(SMALLEST_CAPACITY)("capacity max_bytes", self.max_bytes)
        if self.max_messages is not None:
            checks.integer(1)("capacity max_messages", self.max_messages)
        if self.fraction is not None:
            checks.fraction("capacity fraction", self.fraction)
        checks.one_of("wait", "raise", "drop_oldest")("capacity on_full", self.on_full)

    def in_bytes(self, disk: int | None) -> int | None:
        """Return the limit in bytes for a file system of *disk* bytes, if known; None if bytes are not limited."""
        part = None if disk is None or self.fraction is None else int(disk * self.fraction)
        return min((limit for limit in (self.max_bytes, part) if limit is not None), default=None)

    def to_json(self) -> dict[str, object]:
        """Return a JSON object with the values that are not the default."""
        return _dump(self)

    @staticmethod
    def from_json(value: object) -> Capacity:
        """Reverse ``to_json``. Raise ``ValueError`` if *value* is anything else."""
        return _load(Capacity, "capacity", value)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """How long messages are kept. Retention never deletes messages that a registered consumer has not consumed.

    ``after_consumed="delete"`` removes a segment when every registered consumer has consumed it. Without a registered
    consumer, nothing counts as consumed. ``"keep"`` keeps it until a limit is reached. Both limits apply to
    ``"delete"`` too, where they bound what is stored while no consumer is registered.
    """

    after_consumed: Literal["delete", "keep"] = "delete"
    """What happens to a segment that every registered consumer has consumed."""
    max_age: float | None = None
    """In seconds: a segment is deleted when its newest message is older. None: no limit."""
    max_bytes: int | None = None
    """In bytes of records: the oldest segments beyond it are deleted, but never the active one. None: no limit."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` or ``TypeError`` for invalid values."""
        checks.one_of("delete", "keep")("retention after_consumed", self.after_consumed)
        if self.max_age is not None:
            checks.seconds("retention max_age", self.max_age)
        if self.max_bytes is not None:
            checks.integer(1)("retention max_bytes", self.max_bytes)

    def to_json(self) -> dict[str, object]:
        """Return a JSON object with the values that are not the default."""
        return _dump(self)

    @staticmethod
    def from_json(value: object) -> Retention:
        """Reverse ``to_json``. Raise ``ValueError`` if *value* is anything else."""
        return _load(Retention, "retention", value)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Compression:
    """How finished segments are compressed, in the background, once they are *after* seconds old."""

    method: CompressionMethod = "zstd"
    """``"zstd"``, ``"lz4"`` (needs the extra), ``"gzip"``, or ``"none"`` for no compression."""
    level: int | None = None
    """The level of the method; None is its default."""
    after: float = 60.0
    """How many seconds after it was finished a segment is compressed."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` or ``TypeError`` for a method that is not supported or a level it does not have."""
        checks.one_of(*_LEVELS)("compression method", self.method)
        if self.level is not None:
            checks.integer(*_LEVELS[self.method])(f"compression level of {self.method}", self.level)
        checks.seconds_or_zero("compression after", self.after)

    def to_json(self) -> dict[str, object]:
        """Return a JSON object with the values that are not the default."""
        return _dump(self)

    @staticmethod
    def from_json(value: object) -> Compression:
        """Reverse ``to_json``. Raise ``ValueError`` if *value* is anything else."""
        return _load(Compression, "compression", value)


Policy = TypeVar("Policy", Capacity, Retention, Compression)


def _dump(policy: Capacity | Retention | Compression) -> dict[str, object]:
    values = {field.name: (getattr(policy, field.name), field.default) for field in fields(policy)}
    return {name: value for name, (value, default) in values.items() if value != default}


def _load(form: type[Policy], name: str, value: object) -> Policy:
    if not isinstance(value, dict):
        raise ValueError(f"{name} {value!r}: must be a JSON object")
    try:
        return form(**cast("dict[str, object]", value))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    except TypeError as error:
        raise ValueError(f"{name} {value!r}: {error}") from error
