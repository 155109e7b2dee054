"""Write the corpus: small inputs for each target, from the golden channels and from channels that are made here."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from filechannel._format import crc32c
from filechannel._format.layout import (
    CONTROL_RECORD,
    CURSOR_SIZE,
    GROUP_ENTRY_SIZE,
    GROUP_RING,
    LOCK_GENERATION_SHIFT,
    LOCK_SLOT_SHIFT,
    PAGE,
    POSITION,
    POSITION_CHECKED,
    POSITION_SIZE,
    POSITION_SLOTS,
    PROCESS,
    PRODUCER_RECORD,
    RECORD_HEADER_SIZE,
    SEAL,
    SINK,
)
from filechannel._storage.segments.compression_codecs import codec
from filechannel.blocking import open_channel
from filechannel.cli.transfer.export_header import KEY
from tests.format.pages import packed_record
from tests.fuzz import sample

CORPUS = Path(__file__).parent / "corpus"
GOLDEN = Path(__file__).parents[1] / "data" / "golden-2"
_ODD, _EVEN = b"\1", b"\0"


def seeds(scratch: Path) -> dict[str, dict[str, bytes]]:
    """Return inputs by target and name."""
    records = b"".join(packed_record(payload, at) for payload, at in ((b"", 0), (b"a", 8), (b"bb", 17)))
    records += packed_record(b"\1seal", len(records), CONTROL_RECORD)
    plain = min((GOLDEN / "open" / "segments").glob("*.seg")).read_bytes().rstrip(b"\0")[: 2 * PAGE]
    packed = [path.read_bytes() for path in sorted((GOLDEN / "compressed" / "segments").glob("*.z"))]
    marks = sorted((GOLDEN / "open" / "segments").glob("*.idx"))
    row = {"a": -5, "b": "text", "c": [1.5, None], "d": {"k": True}, "e": "2024-01-02T03:04:05Z", "f": b"x", "g": None}
    payload = msgspec.msgpack.encode(row)
    part = packed_record(b"one", 0) + packed_record(b"two", 11)
    header = json.dumps({KEY: {"version": 1, "codec": "msgpack", "schema": _SCHEMAS["int"]}}).encode()
    staged = {"group": "g", "name": f"{'0' * 24}.rows", "count": 1, "length": 1, "size": 9}
    return {
        "records": {"three": records, "flags": packed_record(b"x" * 40, 0, CONTROL_RECORD)},
        "reader": {"three": records, "golden": plain[64 : 64 + 2000]},
        "segment_header": {"golden": plain[:1000]},
        "compressed": {f"golden-{number}": content for number, content in enumerate(packed) if len(content) < 20_000},
        "archive": {f"golden-{number}": content for number, content in enumerate(packed[:1])},
        "codecs": {
            f"method-{number}": bytes([number, 200, 0, 0]) + codec(number).compressor(None)(b"ab" * 100)
            for number in (1, 2, 3)
        },
        "index": {"golden": marks[0].read_bytes()[:320] if marks else bytes(64)},
        "control": {"golden": (GOLDEN / "open" / "control").read_bytes()[: 2 * PAGE].rstrip(b"\0")},
        "cursor": {"golden": next((GOLDEN / "open" / "consumers").glob("*.cursor")).read_bytes()[:512]},
        "group": _groups(scratch),
        "producer": {"empty": bytes(POSITION_SIZE // 32), "ones": b"\1" * 120},
        "producer_records": _producer_records(),
        "processes": _processes(),
        "file_names": {"names": b"/".join(map(str.encode, _NAMES))},
        "schema": {name: json.dumps(stored).encode() for name, stored in _SCHEMAS.items()},
        "export_header": {"int": header},
        "channel_files": _channel_files(),
        "manifest": {"golden": (GOLDEN / "open" / "channel.json").read_bytes(), "number": b"1", "deep": b"[" * 100},
        "staged_list": {"one": json.dumps([staged]).encode(), "away": json.dumps([staged | {"name": "../x"}]).encode()},
        "staged_rows": {"two": (2).to_bytes(8, "little") + len(part).to_bytes(8, "little") + part},
        "columns": {"row": payload, "empty": b"\x80", "nested": b"\x81\xa1c" + b"\x91" * 50},
        "column_records": {"rows": packed_record(payload, 0) + packed_record(b"\x80", len(payload) + 8)},
    }


_NAMES = (
    "00000000000000000000.seg",
    "00000000000000004096.seg.z",
    "00000000000000004096.idx",
    "new-00000000000000004096.seg",
    "spare-00000000000000000000.seg",
    "a%2Eb.cursor",
    "%C3%BC.group",
    "1",
)
_TEXT = {"kind": "str", "constraints": {"min_length": 1, "pattern": "^a+$"}}
_DICT = {"kind": "dict", "arguments": [_TEXT, _TEXT]}
_RECORD = {
    "name": "Order",
    "form": "struct",
    "fields": [
        {"name": "number", "wire_name": "n", "type": {"kind": "int", "constraints": {"ge": 0, "multiple_of": 2}}},
        {"name": "name", "wire_name": "name", "type": _TEXT, "required": False, "default": "a"},
        {"name": "rows", "wire_name": "rows", "type": {"kind": "list", "arguments": [{"kind": "record", "name": "o"}]}},
        {"name": "state", "wire_name": "state", "type": {"kind": "literal", "values": ["x", 1, None]}},
    ],
    "tag_field": "type",
    "tag": "order",
}
_SCHEMAS: dict[str, object] = {
    "int": {"root": {"kind": "int"}},
    "union": {"root": {"kind": "union", "arguments": [_TEXT, {"kind": "none"}, _DICT]}},
    "record": {"root": {"kind": "record", "name": "o"}, "records": {"o": _RECORD}},
}


def _producer_records() -> dict[str, bytes]:
    """Return logs with two batches of a producer, and position files that know of the first, both, or a third one."""
    log, places = b"", list[int]()
    for number in range(2):
        places.append(len(log))
        fields = PRODUCER_RECORD.pack(SINK, bytes(7), places[0] if number else 0, 0, number + 1, 1)
        log += packed_record(fields + sample.KEY.encode(), len(log), CONTROL_RECORD)
        log += packed_record(b"message", len(log))
    sealed = log + packed_record(SEAL, len(log), CONTROL_RECORD)
    first, second, third = (_slot(generation, at) for generation, at in enumerate((*places, len(log)), 1))
    return {
        "empty": bytes(2 * POSITION_SLOTS[-1]) + log,
        "first": first + bytes(64) + log,
        "both": first + second + sealed,
        "unpublished": third + second + log,
        "damaged": first + bytes(64) + log[: RECORD_HEADER_SIZE + 9] + b"?" + log[RECORD_HEADER_SIZE + 10 :],
    }


def _slot(number: int, record: int) -> bytes:
    fields = (number, record, 0, number, 1, 0)
    return POSITION.pack(*fields, crc32c(POSITION_CHECKED.pack(*fields))).ljust(POSITION_SLOTS[-1], b"\0")


def _processes() -> dict[str, bytes]:
    """Return a lock word that names slot 3, and a table with two processes, one of which waits for capacity."""
    slots = [PROCESS.pack(0, 0, 0, 0, b""), PROCESS.pack(5, 1, 77, 1_700_000_000 * 10**9, b"host"), bytes(64)]
    slots.append(PROCESS.pack(1, 0, 78, 2**63, b"\xff" * 40))
    word = 3 << LOCK_SLOT_SHIFT | 1 << LOCK_GENERATION_SHIFT | 1
    return {"two": word.to_bytes(4, "little") + b"".join(slots)}


def _channel_files() -> dict[str, bytes]:
    """Return each file of the sample, behind the byte that chooses it."""
    source, names = sample.files()
    return {
        f"{number}-{Path(name).suffix[1:] or 'control'}": bytes([number]) + (source / name).read_bytes().rstrip(b"\0")
        for number, name in enumerate(names)
    }


def _groups(scratch: Path) -> dict[str, bytes]:
    """Return groups with messages that are outstanding, acked, and to be redelivered."""
    with open_channel(scratch / "channel", int) as channel, channel.group("g") as rx, channel.sender() as tx:
        file = scratch / "channel" / "consumers" / "g.group"
        new = file.read_bytes()[:CURSOR_SIZE]
        tx.send_many(range(5))
        taken = [rx.receive_delivery() for _ in range(4)]
        taken[1].ack()
        taken[2].nack()
        out = file.read_bytes()[: GROUP_RING + 5 * GROUP_ENTRY_SIZE]
        rx.nack()
    return {"new": new.rstrip(b"\0"), "used": out.rstrip(b"\0")}


def write(scratch: Path) -> None:
    """Store each seed twice: as it is, and with checksums that are made right."""
    for target, inputs in seeds(scratch).items():
        directory = CORPUS / target
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in inputs.items():
            (directory / name).write_bytes(_EVEN + content)
            (directory / f"{name}-fixed").write_bytes(_ODD + content)
