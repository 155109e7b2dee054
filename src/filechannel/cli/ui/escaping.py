"""Escapes text for the terminal: the content of a channel is shown, but cannot control the terminal.

Paths, the names of consumers and fields, reasons and messages may have been chosen by another user: a control
character in them could rewrite the screen, change the title or type into the shell, and an invisible one could make a
name look like another. `safe` replaces them all. It is applied to every text that a command writes. `Plain` and
`Terminal` apply it again to what reaches the streams, so that text that does not come from commands, such as warnings,
log messages and errors of libraries, is escaped too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TextIO, final
from unicodedata import category

_NOT_ASCII: Final = re.compile(r"[^ -~]")
_NOT_ASCII_NOR_LAYOUT: Final = re.compile(r"[^ -~\n\t]")
_NOT_ASCII_NOR_CONTROL: Final = re.compile(r"[\x7f-\U0010ffff]")


def safe(text: str) -> str:
    r"""Return a text as one line in which every character is visible; the others are escaped as `\x1b` or `\u202e`.

    Escaped are control characters, line breaks, characters that change the direction of text or have no width, lone
    surrogates (bytes of a file name that are not text), and unassigned characters.
    """
    return text if text.isprintable() else _NOT_ASCII.sub(_shown, text)


def safe_lines(text: str) -> str:
    """Like `safe`, but keep line breaks and tabs, for text that is already laid out."""
    return text if text.isprintable() else _NOT_ASCII_NOR_LAYOUT.sub(_shown, text)


def safe_json(text: bytes) -> bytes:
    """Return the same JSON, with everything escaped that `safe` escapes in text.

    The strings must not contain raw control characters, which JSON does not allow. Control characters between values
    stay.
    """
    if text.isascii() and b"\x7f" not in text:
        return text
    return _NOT_ASCII_NOR_CONTROL.sub(_shown_in_json, text.decode()).encode()


def _is_visible(character: str) -> bool:
    return character.isprintable() or category(character) == "Zs"  # spaces of other widths


def _shown(found: re.Match[str]) -> str:
    character = found[0]
    return character if _is_visible(character) else _escape(ord(character))


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _shown_in_json(found: re.Match[str]) -> str:
    character = found[0]
    if _is_visible(character):
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


@final
class Plain:
    """A text stream that escapes everything written to it, except line breaks and tabs.

    Rich consoles write to the stream behind it, because they have escaped their text and add colors. So does code that
    writes bytes.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file: TextIO = stream
        """The wrapped stream, under the attribute name that rich looks for."""

    def write(self, text: str) -> int:
        """Write a text, escaped."""
        self.rich_proxied_file.write(safe_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts, escaped."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        """Forward everything else to the wrapped stream."""
        return getattr(self.rich_proxied_file, name)
