"""What runs the pages notices when one of them is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from .pages import blocks_of, needs_of
from .running import run

RIGHT = """
<!-- needs: native -->
<!-- run
number = 41
-->

```python
import asyncio

await asyncio.sleep(0)
print(number + 1, "is", object())
```

```output
42 is <object ... at ...>
```

```python title="answer.py"
import sys

print("an answer of", sys.argv[1])
```

```console
$ python answer.py \\
>   one
an answer of one
$ python answer.py two; false
an ... two
$ echo $?
1
$ python -c 'import time; time.sleep(1000)' &
$ kill %1 && wait
$ echo said > kept.log &
$ wait; cat kept.log
said
```
"""


def test_a_page_that_is_right_runs(tmp_path: Path) -> None:
    """Python, hidden Python, files, commands, their output and their exit codes: all of it is run."""
    page = tmp_path / "page.md"
    page.write_text(RIGHT)
    done = run(page, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert needs_of(page) == {"native"}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("number = 41", "number = 40"),
        ("import asyncio\n", "import nothing\n"),
        ("an answer of one", "an answer of none"),
        ("an ... two", "an ... three"),
        ("an answer of one\n$", "an answer of one, and more\n$"),
        ("$ echo $?\n1\n", ""),
        ("await asyncio.sleep(0)", "orders"),
    ],
)
def test_a_page_that_is_wrong_fails(right: str, wrong: str, tmp_path: Path) -> None:
    """Another output, a missing module, a command that fails: each error names the page and the line."""
    page = tmp_path / "page.md"
    assert right in RIGHT
    page.write_text(RIGHT.replace(right, wrong))
    done = run(page, tmp_path)
    assert done.returncode == 1
    assert str(page) in done.stderr


@pytest.mark.parametrize("fence", ["```", "```pyton", "```python hidden"])
def test_a_block_without_a_meaning_is_an_error(fence: str, tmp_path: Path) -> None:
    """A block without a language, or with another one, is not skipped silently."""
    page = tmp_path / "page.md"
    page.write_text(f"text\n\n{fence}\nx\n```\n")
    with pytest.raises(ValueError, match=r"page\.md:3"):
        blocks_of(page)
