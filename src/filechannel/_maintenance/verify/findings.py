"""Findings: what is wrong with a channel, where, and how severe it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias, final

Severity: TypeAlias = Literal["error", "warning", "note"]
"""*error*: messages or positions are lost or unreadable. *warning*: something is damaged, but nothing is lost by it.
*note*: unusual, but correct."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem."""

    severity: Severity
    kind: str
    """A stable identifier of the problem, for programs."""
    file: str
    """The file, relative to the channel's directory."""
    what: str
    """A description for people."""
    position: int | None = None
    """The position in the file."""
    offset: int | None = None
    """The offset in the log."""
    size: int | None = None
    """How many bytes are affected."""
    mend: str | None = None
    """How to fix it, if a repair does not."""

    @property
    def location(self) -> str:
        """File and position in one string."""
        return self.file if self.position is None else f"{self.file}:{self.position}"

    def to_json(self) -> dict[str, object]:
        """Return every field that is set."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of checking a channel."""

    path: Path
    findings: tuple[Finding, ...]
    segments: int
    """How many segments were checked."""
    messages: int
    """How many intact messages they contain."""
    bytes: int
    """The size of the records."""
    lost: int
    """How many messages are missing in them, as far as that is known."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing is damaged; notes do not count."""
        return not any(finding.severity != "note" for finding in self.findings)

    def to_json(self) -> dict[str, object]:
        """Return the report as plain JSON values."""
        return {
            "path": str(self.path),
            "clean": self.is_clean,
            "segments": self.segments,
            "messages": self.messages,
            "bytes": self.bytes,
            "lost": self.lost,
            "findings": [finding.to_json() for finding in self.findings],
        }
