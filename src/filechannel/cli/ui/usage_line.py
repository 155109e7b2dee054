"""The typer command class of all commands."""

from __future__ import annotations

from typing import Any, final

from typer.core import TyperCommand


@final
class Command(TyperCommand):
    """A command whose usage line has optional arguments in brackets, independent of the typer version."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line after the command name."""
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return ["[OPTIONS]", *map(_argument_usage, arguments)]


def _argument_usage(argument: Any) -> str:
    name = argument.metavar if argument.required else f"[{argument.metavar}]"
    return f"{name}{'...' * (argument.nargs != 1)}"
