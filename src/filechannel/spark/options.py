"""The options of `format("filechannel")`: checked on the driver, before a job begins. Errors name the option."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias, final

from typing_extensions import TypeForm

from .._offset import Offset

Place: TypeAlias = Literal["earliest", "latest"] | Offset | datetime
KNOWN: Final = (
    "path", "type", "startingOffset", "endingOffset", "numPartitions", "arrowBatchRecords", "includeMetadata",
)  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read, and how."""

    path: Path
    message_type: str | None
    start: Place
    stop: Place
    partitions: int | None
    """How many tasks; None leaves it to the size."""
    batch_records: int
    metadata: bool

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Check what was given; `ValueError` names the option and what it may be."""
        options = _Given(given)
        return cls(
            path=options.path(),
            message_type=options.text("type"),
            start=options.place("startingOffset", "earliest"),
            stop=options.place("endingOffset", "latest"),
            partitions=options.number("numPartitions"),
            batch_records=options.number("arrowBatchRecords") or 10_000,
            metadata=options.flag("includeMetadata"),
        )


class _Given:
    """Options as Spark hands them over: texts, whatever the case of their names."""

    def __init__(self, given: Mapping[str, str]) -> None:
        names = {name.lower(): name for name in KNOWN}
        unknown = [name for name in given if name.lower() not in names]
        if unknown:
            raise ValueError(f"option {unknown[0]!r} is not known; there are {', '.join(KNOWN)}")
        self._values = {names[name.lower()]: value for name, value in given.items()}

    def text(self, name: str) -> str | None:
        return self._values.get(name) or None

    def path(self) -> Path:
        text = self.text("path")
        if text is None:
            raise ValueError("option 'path' is missing: .option('path', 'data/orders') or .load('data/orders')")
        return Path(text.removeprefix("file://")).absolute()

    def number(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or int(text) < 1:
            raise ValueError(f"option {name}={text!r}: must be a number, 1 or more")
        return int(text)

    def flag(self, name: str) -> bool:
        text = (self.text(name) or "false").lower()
        if text not in ("true", "false"):
            raise ValueError(f"option {name}={text!r}: must be 'true' or 'false'")
        return text == "true"

    def place(self, name: str, default: Literal["earliest", "latest"]) -> Place:
        text = self.text(name) or default
        if text == "earliest" or text == "latest":
            return text
        if text.isascii() and text.isdigit():
            return Offset(int(text))
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is None:
            raise ValueError(f"option {name}={text!r}: must be 'earliest', 'latest', an offset or a timestamp")
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def load_type(name: str) -> TypeForm[object]:
    """Return the type that `module:name` means; `ValueError` says how to make it known where it is not."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ValueError(f"option type={name!r}: must be 'package.module:Name'")
    try:
        found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"option type={name!r} cannot be loaded ({error}): install its package where this runs, "
            "or leave the option out: the channel knows the schema"
        ) from error
    return found
