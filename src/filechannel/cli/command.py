"""What every command is to typer."""

from __future__ import annotations

from typing import Any, final

from typer.core import TyperCommand


@final
class Command(TyperCommand):
    """A command whose usage line marks what may be left out, as usual; newer typers mark the rest as well."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what is typed behind its name."""
        return [piece.translate(_WITHOUT_BRACES) for piece in super().collect_usage_pieces(ctx)]


_WITHOUT_BRACES = str.maketrans("", "", "{}")
