"""What every command is to typer."""

from __future__ import annotations

from typing import Any, final

from typer.core import TyperCommand


@final
class Command(TyperCommand):
    """A command whose usage line has what may be left out in brackets, as usual; typer's own depends on its version."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what is typed behind its name."""
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return ["[OPTIONS]", *map(_piece, arguments)]


def _piece(argument: Any) -> str:
    name = argument.metavar if argument.required else f"[{argument.metavar}]"
    return f"{name}{'...' * (argument.nargs != 1)}"
