"""Shell commands in messages, quoted so that a user can paste them into a shell for any path or name."""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def shell_words(*words: object) -> str:
    """Return words as typed in a shell that supports `$'...'`: printable, and each quoted to stay one word."""
    return " ".join(map(_quoted, map(str, words)))


def path_word(path: object) -> str:
    """Return a path as an argument that is not mistaken for an option."""
    text = str(path)
    return f"./{text}" if text.startswith("-") else text


def command(*words: object) -> str:
    """Return a command to be quoted within a sentence.

    The command is enclosed in quotes, unless it contains quotes itself: if a user pasted both, the shell would execute
    what the inner quotes protect.
    """
    text = shell_words(*words)
    return text if "'" in text else f"'{text}'"


def removing(path: Path, *, is_directory: bool = False) -> str:
    """Return the command that removes a file or a directory."""
    return shell_words("rm", *(("-r",) if is_directory else ()), path)


def _quoted(text: str) -> str:
    return shlex.quote(text) if text.isprintable() else f"$'{''.join(map(_escaped, os.fsencode(text)))}'"


def _escaped(byte: int) -> str:
    # Some shells replace an exclamation mark by an earlier command (history expansion), even between these quotes.
    return chr(byte) if 32 <= byte < 127 and byte not in b"'\\!" else f"\\x{byte:02x}"
