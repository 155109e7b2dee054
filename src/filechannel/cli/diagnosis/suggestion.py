"""The findings of `doctor`, and the channel that its checks examine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TypeAlias, final

from ..._maintenance.verify.findings import Severity
from ..._maintenance.watch_channel import Figures, Watch
from ..._shell_quoting import shell_words


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """One finding."""

    severity: Severity
    kind: str
    """A stable identifier of the kind of finding, for programs."""
    what: str
    mend: str | None = None
    """The command that fixes it, or what else to do."""

    def to_json(self) -> dict[str, object]:
        """Return the finding as plain JSON."""
        return asdict(self)


@final
@dataclass(frozen=True, slots=True)
class Part:
    """One part of the environment."""

    name: str
    found: str
    suggestion: Suggestion | None = None


@final
@dataclass(frozen=True, slots=True)
class ExaminedChannel:
    """A channel that is being checked."""

    watch: Watch
    figures: Figures

    def command(self, *words: str, about: str | None = None) -> str:
        """Return a shell command for this channel. *about* is a name, and may start with a dash."""
        last = () if about is None else ("--", about) if about.startswith("-") else (about,)
        return shell_words("filechannel", *words, self.watch.path, *last)


Check: TypeAlias = Callable[[ExaminedChannel], Iterator[Suggestion]]
