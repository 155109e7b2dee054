"""The file formats of exported messages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

Format: TypeAlias = Literal["jsonl", "parquet"]

FormatOption: TypeAlias = Annotated[
    Format | None,
    typer.Option("--format", help="The format, if the file name does not determine it.", show_default=False),
]


def format_of(given: Format | None, file: Path | None) -> Format:
    """Return the format to use, and check that the packages it needs are installed."""
    found = given or ("parquet" if file is not None and file.suffix == ".parquet" else "jsonl")
    if found == "parquet" and any(find_spec(name) is None for name in ("pyarrow", "pyspark")):
        needs = "Parquet needs pyarrow and pyspark: pip install 'filechannel[spark]'"
        if given is None:
            raise typer.BadParameter(f"{file}: {needs}", param_hint="FILE")
        raise typer.BadParameter(needs, param_hint="--format")
    return found
