"""Commands in texts: a person may paste them into a shell, whatever the paths and names in them are."""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def shell_words(*words: object) -> str:
    """Return words as they are typed in a shell that knows `$'...'`: printable, and each of them one word."""
    return " ".join(map(_quoted, map(str, words)))


def path_word(path: object) -> str:
    """Return a path as an argument that is not taken for an option."""
    text = str(path)
    return f"./{text}" if text.startswith("-") else text


def command(*words: object) -> str:
    """Return a command for the middle of a sentence.

    Quotes set it off, unless it has quotes of its own: pasted with both, what those protect would be executed.
    """
    text = shell_words(*words)
    return text if "'" in text else f"'{text}'"


def removing(path: Path, *, is_directory: bool = False) -> str:
    """Return the command that removes a file or a directory."""
    return shell_words("rm", *(("-r",) if is_directory else ()), path)


def _quoted(text: str) -> str:
    return shlex.quote(text) if text.isprintable() else f"$'{''.join(map(_escaped, os.fsencode(text)))}'"


def _escaped(byte: int) -> str:
    # An exclamation mark recalls an earlier command in some shells, even between these quotes.
    return chr(byte) if 32 <= byte < 127 and byte not in b"'\\!" else f"\\x{byte:02x}"
