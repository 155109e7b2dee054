"""Draws the pictures of `design.md`: `python docs/images/flows.py`.

A picture is a grid of boxes and the arrows between them. Colours follow the reader's system, on a ground of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).parent
WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 204, 54, 50, 46, 16

STYLE = """
.ground { fill: #ffffff; stroke: #d5dade } .box { fill: #f2f5f7; stroke: #9aa7b1 }
.mark { fill: #d8efec; stroke: #00897b } .wait { fill: #fdf0d9; stroke: #c98a1b }
text { fill: #1f2a33; font: 12.5px system-ui, sans-serif; text-anchor: middle } .note { fill: #51616d; font-size: 11px }
path { fill: none; stroke: #51616d; stroke-width: 1.4 } marker path { fill: #51616d; stroke: none }
@media (prefers-color-scheme: dark) {
.ground { fill: #1b2026; stroke: #39434d } .box { fill: #29313a; stroke: #5d6b78 }
.mark { fill: #11433e; stroke: #26a69a } .wait { fill: #4a3613; stroke: #d9a441 }
text { fill: #e3e8ec } .note { fill: #a9b5bf } path { stroke: #a9b5bf } marker path { fill: #a9b5bf } }
"""

TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z"/></marker>'
)


@dataclass(frozen=True)
class Box:
    """A step; its text has one or two lines. *kind*: a plain `box`, the `mark` that counts, or a `wait`."""

    column: float
    row: float
    text: str
    kind: str = "box"

    @property
    def x(self) -> float:
        return MARGIN + self.column * (WIDTH + ACROSS)

    @property
    def y(self) -> float:
        return MARGIN + self.row * (HEIGHT + DOWN)

    def draw(self) -> str:
        lines = self.text.split("\n")
        top = self.y + HEIGHT / 2 + 4.5 - 8 * (len(lines) - 1)
        drawn = f'<rect class="{self.kind}" x="{self.x:g}" y="{self.y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        for number, line in enumerate(lines):
            note = ' class="note"' if number else ""
            drawn += f'<text x="{self.x + WIDTH / 2:g}" y="{top + 16 * number:g}"{note}>{escape(line)}</text>'
        return drawn


@dataclass(frozen=True)
class Arrow:
    """From one box to another, straight, or first across and then down."""

    begin: Box
    end: Box
    label: str = ""

    def draw(self) -> str:
        a, b = self.begin, self.end
        middle = a.y + HEIGHT / 2
        if a.row == b.row:
            forth = a.column < b.column
            x1, x2 = (a.x + WIDTH, b.x) if forth else (a.x, b.x + WIDTH)
            return self._line(f"M{x1:g},{middle:g} H{x2:g}", (x1 + x2) / 2, middle - 6)
        down = a.row < b.row
        y2 = b.y if down else b.y + HEIGHT
        if a.column == b.column:
            y1 = a.y + HEIGHT if down else a.y
            return self._line(f"M{a.x + WIDTH / 2:g},{y1:g} V{y2:g}", a.x + WIDTH / 2, (y1 + y2) / 2 + 4, beside=True)
        x1 = a.x + WIDTH if a.column < b.column else a.x
        return self._line(f"M{x1:g},{middle:g} H{b.x + WIDTH / 2:g} V{y2:g}", b.x + WIDTH / 2, (middle + y2) / 2, True)

    def _line(self, path: str, x: float, y: float, beside: bool = False) -> str:
        drawn = f'<path d="{path}" marker-end="url(#tip)"/>'
        if self.label:
            place = f'x="{x + 8:g}" y="{y:g}" style="text-anchor: start"' if beside else f'x="{x:g}" y="{y:g}"'
            drawn += f'<text class="note" {place}>{escape(self.label)}</text>'
        return drawn


def picture(title: str, *arrows: Arrow) -> str:
    """Return a picture of all the boxes that the arrows join."""
    boxes = list(dict.fromkeys(box for arrow in arrows for box in (arrow.begin, arrow.end)))
    width = max(box.x for box in boxes) + WIDTH + MARGIN
    height = max(box.y for box in boxes) + HEIGHT + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        TIP,
        f'<rect class="ground" x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>',
        *(arrow.draw() for arrow in arrows),
        *(box.draw() for box in boxes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def chain(*boxes: Box) -> list[Arrow]:
    """Return the arrows from each box to the next."""
    return [Arrow(a, b) for a, b in pairwise(boxes)]


def send() -> str:
    encode, lock = Box(0, 0, "encode\ninto a buffer used again"), Box(1, 0, "take the writer word\ncompare-and-swap")
    copy, publish = Box(2, 0, "copy the record\nheader, payload, CRC"), Box(3, 0, "publish the tail", "mark")
    unlock, wake = Box(3, 1, "free the word\nan exchange: the fence"), Box(3, 2, "somebody armed?\nwake them")
    slow = Box(2, 1, "Log.append, in Python\nroll, allocate, index")
    dead = Box(1, 1, "sleep, or ask the kernel\nwhether its owner lives", "wait")
    return picture(
        "How a message is sent",
        *chain(encode, lock, copy, publish, unlock, wake),
        Arrow(copy, slow, "window used up"),
        Arrow(lock, dead, "taken"),
    )


def receive() -> str:
    look, copy = Box(0, 0, "look at the tail"), Box(1, 0, "copy the record")
    check, cursor = Box(2, 0, "check the copy\nCRC covers its offset"), Box(3, 0, "decode, store the cursor", "mark")
    arm, again = Box(0, 1, "arm: say that we wait"), Box(1, 1, "fence, look again")
    sleep = Box(1, 2, "sleep until woken", "wait")
    other = Box(2, 1, "another segment by now?\nlook for the offset again")
    return picture(
        "How a message is received",
        *chain(look, copy, check, cursor),
        Arrow(look, arm, "nothing there"),
        Arrow(arm, again),
        Arrow(again, copy, "something came"),
        Arrow(again, sleep, "still nothing"),
        Arrow(check, other, "mismatch"),
    )


def wake() -> str:
    arm, fence = Box(0, 0, "waiter: set its bit"), Box(1, 0, "fence, look again\nwhether something came")
    sleep = Box(2, 0, "sleep\nloop: on a FIFO, thread: on a futex", "wait")
    publish, look = Box(0, 1, "sender: publish the tail", "mark"), Box(1, 1, "fence, look at the bits")
    ring, watch = Box(2, 1, "ring"), Box(3, 0, "watchdog, once a second\nfor a sender that was killed")
    return picture(
        "How somebody who waits is woken",
        *chain(arm, fence, sleep),
        *chain(publish, look, ring, sleep),
        Arrow(watch, sleep),
    )


def segments() -> str:
    active = Box(0, 1, "active segment\nwritten through its map")
    finished = Box(1, 1, "finished segment\nflushed a second later")
    zipped = Box(1, 0, "compressed")
    passed = Box(2, 1, "passed by every consumer\noldest offset, checkpoint", "mark")
    removed = Box(3, 1, "removed\nif enough spares wait")
    spare = Box(2, 2, "spare file\nits pages are still there")
    begin = Box(1, 2, "header, then rename")
    fresh = Box(0, 2, "next active segment")
    ahead = Box(1, 3, "made ahead, past the half\nif there is no spare")
    return picture(
        "How files become segments again",
        *chain(active, finished, passed, removed),
        Arrow(finished, zipped, "if it stays for long"),
        Arrow(zipped, passed),
        *chain(passed, spare, begin, fresh),
        Arrow(ahead, begin),
    )


def flush() -> str:
    append, ticket = Box(0, 0, "append, not shown yet\nunder FSYNC"), Box(1, 0, "take a ticket, wait\nshielded", "wait")
    sync, show = Box(2, 0, "one fdatasync\nfor all who wait"), Box(3, 0, "durable offset; show", "mark")
    failed = Box(2, 1, "it failed: all are told,\na fresh file from here on")
    cut, opened = Box(0, 2, "power cut", "wait"), Box(1, 2, "next open\nboot id differs")
    walk, keep = (
        Box(2, 2, "from the checkpoint on:\nrecords that validate"),
        Box(3, 2, "end after the last\nwhole batch", "mark"),
    )
    rest = Box(3, 3, "valid ones beyond it\ninto quarantine/")
    return picture(
        "How messages reach the disk, and what an open does after a power cut",
        *chain(append, ticket, sync, show),
        Arrow(sync, failed, "error"),
        *chain(cut, opened, walk, keep),
        Arrow(keep, rest),
    )


def group() -> str:
    read, lock = Box(0, 0, "read the next record\ncopy, check"), Box(1, 0, "lock: still the next one?")
    claim, work = (
        Box(2, 0, "one word: state, attempt,\ntoken, owner", "mark"),
        Box(3, 0, "handler works\nkeeper extends the lease"),
    )
    ack, move = Box(3, 1, "ack: swap that very word", "mark"), Box(3, 2, "oldest settled?\nthe position follows")
    late, again = Box(2, 1, "dead, late or nacked:\nthe word says free"), Box(1, 1, "handed out again\nattempt + 1")
    refused = Box(2, 2, "another word by now:\nLeaseExpiredError")
    return picture(
        "How the members of a group share messages",
        *chain(read, lock, claim, work, ack, move),
        Arrow(claim, late, "whoever comes by looks"),
        Arrow(late, again),
        Arrow(again, lock),
        Arrow(late, refused, "a late ack"),
    )


def spark() -> str:
    plan, tasks = (
        Box(0, 0, "driver: plan offsets\ncut between records"),
        Box(1, 0, "tasks: records to Arrow\nor read from blocks"),
    )
    query, stage = Box(2, 0, "query\ncheckpoint of Spark"), Box(3, 0, "tasks: rows to messages\nfiles in staging/")
    commit = Box(3, 1, "driver: all files as one batch\nwith query id and batch number", "mark")
    twice = Box(2, 1, "number there already?\nnothing is written")
    moved = Box(0, 1, "consumer follows the batch\nthat is done")
    return picture(
        "How Spark reads and writes channels",
        *chain(plan, tasks, query, stage, commit),
        Arrow(commit, twice),
        Arrow(plan, moved),
    )


FLOWS = (send, receive, wake, segments, flush, group, spark)

if __name__ == "__main__":
    for draw in FLOWS:
        (HERE / f"{draw.__name__}.svg").write_text(draw())
