"""What is wrong with a channel, where, and how bad that is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias, final

Severity: TypeAlias = Literal["error", "warning", "note"]
"""*error*: messages or positions are lost, or cannot be read. *warning*: something is damaged, and nothing lost by it.
*note*: unusual, and as it may be."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be."""

    severity: Severity
    kind: str
    """What it is, in a word that stays the same: for programs."""
    file: str
    """Which file, as seen from the channel's directory."""
    what: str
    """The same for people."""
    position: int | None = None
    """Where in the file."""
    offset: int | None = None
    """Where in the log."""
    size: int | None = None
    """How many bytes are concerned."""
    mend: str | None = None
    """What mends it, if a repair does not."""

    @property
    def place(self) -> str:
        """Where it is, in one word."""
        return self.file if self.position is None else f"{self.file}:{self.position}"

    def to_json(self) -> dict[str, object]:
        """Return every field that says something."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of looking at a channel."""

    path: Path
    findings: tuple[Finding, ...]
    segments: int
    """How many were looked at."""
    messages: int
    """How many whole messages were found in them."""
    bytes: int
    """How many bytes of records."""
    lost: int
    """How many messages are missing in them, as far as that is known."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing is damaged; notes do not count."""
        return not any(finding.severity != "note" for finding in self.findings)

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON."""
        return {
            "path": str(self.path),
            "clean": self.is_clean,
            "segments": self.segments,
            "messages": self.messages,
            "bytes": self.bytes,
            "lost": self.lost,
            "findings": [finding.to_json() for finding in self.findings],
        }
