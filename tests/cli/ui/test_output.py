"""What is written, and how figures read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from filechannel.cli.ui.escaping import safe
from filechannel.cli.ui.humanize import counted, size, span
from filechannel.cli.ui.output import plain
from tests.cli.shell import fill, real


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (2_100_000_000, "2.1 GB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    """A size is printed in the unit that fits, and never as a thousand of the smaller one."""
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 seconds"),
        (0.25, "0.2 seconds"),
        (1, "1 second"),
        (119, "119 seconds"),
        (120, "2 minutes"),
        (7199, "119 minutes"),
        (86_400, "24 hours"),
        (3 * 86_400, "3 days"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    """A time span is printed in the unit that suits it."""
    assert span(seconds) == text


def test_numbers() -> None:
    """A number is printed with separators of thousands, and with the singular for one."""
    assert [counted(count, "message") for count in (0, 1, 2000)] == ["0 messages", "1 message", "2,000 messages"]


def test_what_a_report_consists_of() -> None:
    """In a JSON report dataclasses are objects, times are texts and durations are seconds."""

    @dataclass
    class Found:
        when: datetime
        age: timedelta
        where: Path

    found = Found(datetime(2026, 1, 1, tzinfo=UTC), timedelta(minutes=1), Path("/x"))
    assert plain([found]) == [{"when": "2026-01-01T00:00:00+00:00", "age": 60.0, "where": "/x"}]


def test_nothing_is_a_command_to_a_terminal() -> None:
    """Escaped text contains neither colour codes nor changes of direction."""
    assert safe("a\x1b[31m\x9b\u202eb\n") == "a\\x1b[31m\\x9b\\u202eb\\x0a"


def test_a_table_is_as_wide_as_the_terminal(path: Path) -> None:
    """A table is folded to the width of a terminal, and as wide as needed in a pipe."""
    channel = fill(path.with_name("o" * 100), 1)
    assert str(channel) in real("info", channel)[1]
    narrow = real("info", channel, environment={"COLUMNS": "60"})[1]
    assert all(len(line) <= 60 for line in narrow.splitlines())
    assert str(channel) in "".join(line[21:] for line in narrow.splitlines())
