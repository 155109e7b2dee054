"""Draws the pictures of `design.md`: `python docs/images/flows.py`.

A picture is a grid of boxes and the arrows between them. It has two columns at most, so that it is readable on a phone,
where a page has about 330 pixels for it: the common case runs down the left column, exceptions are on the right.
Colors follow the reader's system, on a background of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).parent
WIDTH, HEIGHT, ACROSS, DOWN, MARGIN, LINE = 172, 64, 28, 26, 12, 17

STYLE = """
.ground { fill: #ffffff; stroke: #d5dade } .box { fill: #f2f5f7; stroke: #9aa7b1 }
.mark { fill: #d8efec; stroke: #00897b } .wait { fill: #fdf0d9; stroke: #c98a1b }
text { fill: #1f2a33; font: 13.5px system-ui, sans-serif; text-anchor: middle }
.note { fill: #51616d; font-size: 12.5px }
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
    """A step; its text has one to three lines. *kind*: a plain `box`, the `mark` that counts, or a `wait`."""

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
        top = self.y + HEIGHT / 2 + 4.5 - LINE / 2 * (len(lines) - 1)
        drawn = f'<rect class="{self.kind}" x="{self.x:g}" y="{self.y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        for number, line in enumerate(lines):
            note = ' class="note"' if number else ""
            drawn += f'<text x="{self.x + WIDTH / 2:g}" y="{top + LINE * number:g}"{note}>{escape(line)}</text>'
        return drawn


@dataclass(frozen=True)
class Arrow:
    """From one box to another, straight, or first across and then down."""

    begin: Box
    end: Box

    def draw(self) -> str:
        a, b = self.begin, self.end
        middle = a.y + HEIGHT / 2
        if a.row == b.row:
            x1, x2 = (a.x + WIDTH, b.x) if a.column < b.column else (a.x, b.x + WIDTH)
            return self._line(f"M{x1:g},{middle:g} H{x2:g}")
        y2 = b.y if a.row < b.row else b.y + HEIGHT
        if a.column == b.column:
            y1 = a.y + HEIGHT if a.row < b.row else a.y
            return self._line(f"M{a.x + WIDTH / 2:g},{y1:g} V{y2:g}")
        x1 = a.x + WIDTH if a.column < b.column else a.x
        return self._line(f"M{x1:g},{middle:g} H{b.x + WIDTH / 2:g} V{y2:g}")

    def _line(self, path: str) -> str:
        return f'<path d="{path}" marker-end="url(#tip)"/>'


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
    encode = Box(0, 0, "encode the message\ninto a reused buffer")
    lock = Box(0, 1, "acquire the writer lock\ncompare-and-swap")
    copy = Box(0, 2, "copy the record\nheader, payload, CRC")
    publish = Box(0, 3, "publish the tail", "mark")
    unlock = Box(0, 4, "release the lock\nan exchange: the fence")
    wake = Box(0, 5, "wake the receivers\nthat armed\nthe wake word")
    held = Box(1, 1, "lock held: sleep,\nor ask the kernel if\nthe holder is alive", "wait")
    slow = Box(1, 2, "window used up:\nLog.append rolls,\nallocates, indexes")
    return picture(
        "How a message is sent", *chain(encode, lock, copy, publish, unlock, wake), Arrow(lock, held), Arrow(copy, slow)
    )


def receive() -> str:
    tail, copy = Box(0, 0, "check the tail"), Box(0, 1, "copy the record")
    verify = Box(0, 3, "verify the copy\nthe CRC covers its offset")
    cursor = Box(0, 4, "decode,\nstore the cursor", "mark")
    arm = Box(1, 0, "no message:\narm the wake word")
    again = Box(1, 1, "fence,\ncheck the tail again")
    sleep = Box(1, 2, "still no message:\nsleep until woken", "wait")
    mismatch = Box(1, 3, "mismatch: look up\nthe offset again, maybe\nin another segment")
    return picture(
        "How a message is received",
        *chain(tail, copy, verify, cursor),
        *chain(tail, arm, again, copy),
        Arrow(again, sleep),
        Arrow(verify, mismatch),
    )


def wake() -> str:
    arm = Box(0, 0, "receiver:\nsets its bit")
    check = Box(0, 1, "fence,\nchecks for a message\nonce more")
    sleep = Box(0, 2, "sleeps\nevent loop: on a FIFO\nthread: on a futex", "wait")
    publish = Box(1, 0, "sender:\npublishes the tail", "mark")
    bits = Box(1, 1, "fence,\nchecks the bits")
    ring = Box(1, 2, "wakes the receivers\nwhose bit is set")
    watchdog = Box(0, 3, "watchdog\nevery second, repeats\nwakeups of dead senders")
    return picture(
        "How a waiting receiver is woken",
        *chain(arm, check, sleep),
        *chain(publish, bits, ring, sleep),
        Arrow(watchdog, sleep),
    )


def segments() -> str:
    active = Box(0, 0, "active segment\nwritten through its map")
    finished = Box(0, 1, "finished segment\nflushed a second later")
    read = Box(0, 2, "read by all consumers\nlow watermark,\ncheckpoint", "mark")
    free = Box(0, 3, "file on the free list\nits pages stay allocated")
    header = Box(0, 4, "header, then rename")
    following = Box(0, 5, "next active segment")
    compressed = Box(1, 2, "kept for long:\ncompressed")
    deleted = Box(1, 3, "free list full:\nthe file is deleted")
    prepared = Box(1, 4, "free list empty:\nprepared when the\nactive one is half full")
    return picture(
        "How segment files are recycled",
        *chain(active, finished, read, free, header, following),
        *chain(finished, compressed, read),
        Arrow(free, deleted),
        Arrow(prepared, header),
    )


def flush() -> str:
    append = Box(0, 0, "append under FSYNC\nnot visible yet")
    ticket = Box(0, 1, "wait for a flush\nshielded from\ncancellation", "wait")
    sync = Box(0, 2, "one fdatasync\nfor all waiting senders")
    publish = Box(0, 3, "the durable offset\nadvances, messages\nare visible", "mark")
    failed = Box(1, 2, "flush failed: all senders\nget the error, a new file\nfrom here on")
    cut = Box(0, 4.4, "power cut", "wait")
    opened = Box(0, 5.4, "next open\nthe boot id differs")
    walk = Box(0, 6.4, "walk the valid records\nfrom the checkpoint")
    end = Box(0, 7.4, "end of the log\nafter the last\ncomplete batch", "mark")
    rest = Box(1, 7.4, "valid records after\nthe end are moved\nto quarantine/")
    return picture(
        "How messages reach the disk, and what an open does after a power cut",
        *chain(append, ticket, sync, publish),
        Arrow(sync, failed),
        *chain(cut, opened, walk, end, rest),
    )


def group() -> str:
    read = Box(0, 0, "read the next record\ncopy, verify")
    lock = Box(0, 1, "acquire the lock\nstill the next record?")
    claim = Box(0, 2, "claim it by one word\nstate, attempt,\ntoken, owner", "mark")
    work = Box(0, 3, "handler runs\nthe lease renewer\nextends the lease")
    ack = Box(0, 4, "ack\nswap that same word", "mark")
    move = Box(0, 5, "oldest claim acked?\nthe position of the\ngroup advances")
    again = Box(1, 1, "redelivered\nattempt + 1")
    freed = Box(1, 2, "member dead, lease\nexpired, or nack:\nthe word is set to free")
    refused = Box(1, 3, "late ack, the word has\nchanged:\nLeaseExpiredError")
    return picture(
        "How the members of a group share messages",
        *chain(read, lock, claim, work, ack, move),
        *chain(claim, freed, again, lock),
        Arrow(freed, refused),
    )


def spark() -> str:
    plan = Box(0, 0, "driver: plans offsets\ncut between records")
    tasks = Box(0, 1, "tasks: records to Arrow\nor read from blocks")
    query = Box(0, 2, "query\nwith Spark's checkpoint")
    stage = Box(0, 3, "tasks: write messages\nfrom rows to staging/")
    commit = Box(0, 4, "driver: one batch\nof all files, with query\nid and batch number", "mark")
    moved = Box(1, 0, "batch done:\nthe consumer advances")
    twice = Box(1, 4, "number already stored:\nnothing is written")
    return picture(
        "How Spark reads and writes channels",
        *chain(plan, tasks, query, stage, commit),
        Arrow(plan, moved),
        Arrow(commit, twice),
    )


FLOWS = (send, receive, wake, segments, flush, group, spark)

if __name__ == "__main__":
    for draw in FLOWS:
        (HERE / f"{draw.__name__}.svg").write_text(draw())
