"""The policies of a channel: values that say when data is on disk, how much of it there may be, and how long it stays.

Each is frozen, validated when it is made, and travels through the manifest as plain JSON.
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
"""Four of the smallest segments: a full one can go while another is written to."""
_LEVELS: Final[Mapping[str, tuple[int, int]]] = {"zstd": (-7, 22), "lz4": (0, 16), "gzip": (1, 9), "none": (0, 0)}


@final
@dataclass(frozen=True, slots=True, repr=False)
class Durability:
    """When a sent message is on disk: one of ``OS``, ``interval(seconds)`` and ``FSYNC``.

    ``OS`` leaves it to the kernel: a process crash loses nothing, a power cut what was not written yet.
    ``interval`` flushes in the background: a power cut loses at most that interval. ``FSYNC`` flushes before
    ``send`` returns and before anybody sees the message; concurrent senders share a flush.
    """

    kind: Literal["os", "interval", "fsync"]
    seconds: float | None = None
    """Only for ``interval``: the longest time between two flushes."""

    OS: ClassVar[Durability]
    FSYNC: ClassVar[Durability]

    def __post_init__(self) -> None:
        """Refuse what is not one of the three forms."""
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
        """Undo ``to_json``; ``ValueError`` if *value* is anything else."""
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
        """Pickle by value; ``OS`` and ``FSYNC`` come back as the constants themselves."""
        return Durability.from_json, (self.to_json(),)


Durability.OS = Durability("os")
Durability.FSYNC = Durability("fsync")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """How much may wait to be consumed, and what happens to whoever sends more.

    Counted are records that the slowest registered consumer has not passed; with no consumer, all that is stored. The
    smallest of the limits that are given counts. A full channel lets a sender wait (``"wait"``), refuses
    (``"raise"``), or gives up its oldest messages, a segment at a time (``"drop_oldest"``): consumers that are
    overtaken are told how much they missed.
    """

    max_bytes: int | None = None
    """Bytes of records, headers included; at least four segments."""
    max_messages: int | None = None
    """Messages."""
    fraction: float | None = None
    """Part of the file system that the channel lies in, above 0 and at most 1; at least four segments, too."""
    on_full: OnFull = "wait"

    def __post_init__(self) -> None:
        """Refuse what limits nothing, or cannot be kept."""
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
        """Return how many bytes it comes to in a file system of this size, if that is known; None for any number."""
        part = None if disk is None or self.fraction is None else int(disk * self.fraction)
        return min((limit for limit in (self.max_bytes, part) if limit is not None), default=None)

    def to_json(self) -> dict[str, object]:
        """Return a JSON object with what is not the default."""
        return _dump(self)

    @staticmethod
    def from_json(value: object) -> Capacity:
        """Undo ``to_json``; ``ValueError`` if *value* is anything else."""
        return _load(Capacity, "capacity", value)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """How long messages stay. What a registered consumer has not passed stays whatever is said here.

    ``after_consumed="delete"`` removes a segment when every registered consumer has passed it; with no consumer
    registered nothing counts as consumed. ``"keep"`` keeps it until it is too old or there is too much. Both limits
    apply under ``"delete"`` too, where they bound what nobody is registered for.
    """

    after_consumed: Literal["delete", "keep"] = "delete"
    max_age: float | None = None
    """Seconds; a segment goes when its youngest message is older."""
    max_bytes: int | None = None
    """Bytes of records; the oldest segments go first, and the one that is written to never goes."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        checks.one_of("delete", "keep")("retention after_consumed", self.after_consumed)
        if self.max_age is not None:
            checks.seconds("retention max_age", self.max_age)
        if self.max_bytes is not None:
            checks.integer(1)("retention max_bytes", self.max_bytes)

    def to_json(self) -> dict[str, object]:
        """Return a JSON object with what is not the default."""
        return _dump(self)

    @staticmethod
    def from_json(value: object) -> Retention:
        """Undo ``to_json``; ``ValueError`` if *value* is anything else."""
        return _load(Retention, "retention", value)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Compression:
    """How finished segments are compressed, in the background, once they are *after* seconds old."""

    method: CompressionMethod = "zstd"
    level: int | None = None
    """As the method counts them; None is its default."""
    after: float = 60.0

    def __post_init__(self) -> None:
        """Refuse what the method does not know."""
        checks.one_of(*_LEVELS)("compression method", self.method)
        if self.level is not None:
            checks.integer(*_LEVELS[self.method])(f"compression level of {self.method}", self.level)
        checks.seconds_or_zero("compression after", self.after)

    def to_json(self) -> dict[str, object]:
        """Return a JSON object with what is not the default."""
        return _dump(self)

    @staticmethod
    def from_json(value: object) -> Compression:
        """Undo ``to_json``; ``ValueError`` if *value* is anything else."""
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
