"""What `doctor` says, and what it looks at."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TypeAlias, final

from .._maintenance.findings import Severity
from .._maintenance.watch import Figures, Watch


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing that somebody should know."""

    severity: Severity
    kind: str
    """What it is, in a word that stays the same: for programs."""
    what: str
    mend: str | None = None
    """The command that mends it, or what else to do."""

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON."""
        return asdict(self)


@final
@dataclass(frozen=True, slots=True)
class Part:
    """One part of the environment."""

    name: str
    found: str
    advice: Advice | None = None


@final
@dataclass(frozen=True, slots=True)
class Patient:
    """A channel that is looked at."""

    watch: Watch
    figures: Figures

    @property
    def path(self) -> str:
        """As it is written in a command."""
        return shlex.quote(str(self.watch.path))


Check: TypeAlias = Callable[[Patient], Iterator[Advice]]
