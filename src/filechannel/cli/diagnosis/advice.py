"""What `doctor` says, and what it looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TypeAlias, final

from .._maintenance.findings import Severity
from .._maintenance.watch import Figures, Watch
from .._shell import shell_words


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

    def command(self, *words: str, about: str | None = None) -> str:
        """Return a command on it as it is typed; *about* is a name, whatever it begins with."""
        last = () if about is None else ("--", about) if about.startswith("-") else (about,)
        return shell_words("filechannel", *words, self.watch.path, *last)


Check: TypeAlias = Callable[[Patient], Iterator[Advice]]
