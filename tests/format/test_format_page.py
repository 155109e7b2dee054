"""`docs/format.md` and `layout.py` say the same.

Each table that has numbers is marked in the page with an invisible comment that says what it describes. A change of a
number, a field or a name on one side needs the same change on the other.
"""

from __future__ import annotations

import ast
import inspect
import re
from itertools import pairwise
from pathlib import Path
from struct import Struct
from types import SimpleNamespace

import pytest

from filechannel._format import layout
from filechannel._storage.segments.compression_codecs import NUMBERS

PAGE = Path(__file__).parent.parent.parent / "docs" / "format.md"
MARKER = re.compile(r"^<!-- layout: (.+) -->$")

STRUCTS = {
    "RECORD_HEADER",
    "RECORD_CHECKED",
    "SEGMENT_HEADER",
    "SEGMENT_EXTENT",
    "COMPRESSED",
    "COMPRESSED_BLOCK",
    "INDEX_ENTRY",
    "CONTROL_IDENTITY",
    "TAIL_SLOT",
    "CHECKPOINT",
    "PROCESS",
    "HOLDER",
    "CURSOR",
    "TERM",
    "DEPARTURE",
    "ORIGIN",
    "PRODUCER_RECORD",
    "POSITION",
    "ENTRY",
}
CHECKED = {
    "TAIL_CHECKED": "TAIL_SLOT",
    "CHECKPOINT_CHECKED": "CHECKPOINT",
    "CURSOR_CHECKED": "CURSOR",
    "TERM_CHECKED": "TERM",
    "DEPARTURE_CHECKED": "DEPARTURE",
    "ORIGIN_CHECKED": "ORIGIN",
    "POSITION_CHECKED": "POSITION",
}
"""What the CRC of a structure covers: all of it but the CRC, which is its last field."""
ELSEWHERE = {
    # Separate tables below.
    *("RECORD_HEADER_SIZE", "BATCH_CONTINUES", "CONTROL_RECORD", "LENGTH_MASK", "MAX_PAYLOAD", "SEAL"),
    *("SEGMENT_MAGIC", "SEGMENT_HEADER_SIZE", "SEGMENT_BEGIN", "SEGMENT_END", "SEGMENT_FIRST_SEQUENCE"),
    *("SEGMENT_PREVIOUS_END", "SEGMENT_CREATED", "SEGMENT_CRC", "SEGMENT_END_CRC", "SEGMENT_DIGITS"),
    *("CONTROL_MAGIC", "CONTROL_CHANNEL", "CONTROL_SIZE", "WRITER_LOCK", "WRITE_TAIL", "APPEND_TAIL", "RESERVED_END"),
    *("ALLOCATED_END", "OLDEST_OFFSET", "STATE", "WAKE", "DURABLE_OFFSET", "STATE_SEALED", "STATE_DEFERRED"),
    *("EPOCH", "FLUSH_LOCK", "FAILED_FLUSHES", "WAITING_LOOPS", "WAKE_THREADS", "WAKE_LOOPS", "WAKE_GENERATION"),
    *("CONTENDED", "LOCK_GENERATION_SHIFT", "LOCK_GENERATION_BITS", "LOCK_SLOT_SHIFT"),
    *("TAIL_SLOTS", "CHECKPOINT_SLOTS", "MODE_BYTE", "OPENING_BYTE"),
    *("PROCESS_SLOTS", "PROCESS_SLOT_COUNT", "PROCESS_SLOT_SIZE"),
    *("CURSOR_SIZE", "CURSOR_SLOTS", "CURSOR_OWNER", "CURSOR_TERM", "CURSOR_DEPARTURE"),
    *("LOCK_FILE", "NAME_LOCKS", "NAME_LOCK_SIZE", "NAME_LOCK_COUNT", "NAME_OWNER", "NAME_REMOVER", "NAME_MEMBERS"),
    *("CURSOR_ORIGIN", "TRANSACTION", "SINK", "POSITION_SIZE", "POSITION_SLOTS"),
    *("GROUP_INITIALIZED", "GROUP_HEAD", "GROUP_LOCK", "GROUP_TAIL", "GROUP_NEXT", "GROUP_NEXT_SEQUENCE"),
    *("GROUP_READY", "GROUP_DUE", "GROUP_RING", "GROUP_ENTRIES", "GROUP_ENTRY_SIZE", "GROUP_SIZE"),
    *("ENTRY_OFFSET", "ENTRY_END", "ENTRY_SEQUENCE", "ENTRY_DEADLINE", "ENTRY_STATE", "ENTRY_ATTEMPT_SHIFT"),
    *("ENTRY_ACKED", "ENTRY_OUT", "ENTRY_READY", "ENTRY_DELAYED", "ENTRY_SKIPPED", "ENTRY_ATTEMPTS"),
    *("ENTRY_TOKEN_SHIFT", "ENTRY_TOKENS", "ENTRY_OWNER_SHIFT"),
    "REGISTRATIONS",
    *("REGISTRY", "REGISTRY_DECIDED", "REGISTRY_COUNT", "RECLAIMING", "RECLAIMED_SEGMENTS", "RECLAIMED_BYTES"),
    *("MAINTENANCE_ERRORS", "MAINTENANCE_BYTE", "MAINTAINED", "MAINTAINER", "QUIET_OFFSET", "QUIET_SINCE"),
    *("POISONED_BEFORE", "PURGED_OFFSET", "INDEX_CHECKED"),
    *("COMPRESSED_MAGIC", "COMPRESSED_EXTRA", "COMPRESSED_TABLE", "METHOD_ZSTD", "METHOD_LZ4", "METHOD_GZIP"),
    "COMPRESSED_OFFSET",
    *(
        "REGISTRATIONS",
        "CAPACITY_WAKE",
        "CAPACITY_WATCHED",
        "CAPACITY_TURN",
        "CAPACITY_WANTED",
        "CAPACITY_LOOPS",
        "PROCESS_WAITING",
        "CONTROL_RESERVE",
        "FLUSHES",
        "FLUSHING_SEGMENTS",
        "FLUSHING_CONTROL",
        "FLUSHES_STEP",
        "CONTROL_FLUSHES_STEP",
    ),
}
CONSTANTS = {
    "largest offset": layout.LARGEST_OFFSET,
    "largest generation": layout.LARGEST_GENERATION,
    "largest time": layout.LARGEST_TIME,
    "format version": layout.FORMAT_VERSION,
    "page": layout.PAGE,
    "cache line": layout.CACHE_LINE,
    "index bytes": layout.INDEX_BYTES,
    "index seconds": layout.INDEX_SECONDS,
    "offset gap": layout.OFFSET_GAP,
    "block size": layout.BLOCK_SIZE,
}

Rows = list[dict[str, str]]


def tables() -> dict[str, Rows]:
    """Return the marked tables of the page; those with the same mark are one."""
    found: dict[str, Rows] = {}
    lines = iter(PAGE.read_text(encoding="utf-8").splitlines())
    for line in lines:
        mark = MARKER.match(line)
        if mark is None:
            continue
        assert next(lines) == ""
        columns = cells(next(lines))
        assert set(next(lines)) <= set("|- ")
        rows = found.setdefault(mark[1], [])
        for row in lines:
            if not row.startswith("|"):
                break
            rows.append(dict(zip(columns, cells(row), strict=True)))
    return found


def cells(line: str) -> list[str]:
    """Return the cells of a row."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def fields_of(struct: Struct) -> list[tuple[int, int]]:
    """Return (position, size) of each field."""
    codes = re.findall(r"\d*[a-zA-Z]", struct.format.removeprefix("<"))
    assert struct.format.startswith("<")
    fields, position = [], 0
    for code in codes:
        size = Struct("<" + code).size
        fields.append((position, size))
        position += size
    assert position == struct.size
    return fields


def names_of(name: str) -> list[str]:
    """Return the names of the fields of a structure, from the docstring below it."""
    body = ast.parse(inspect.getsource(layout)).body
    for statement, following in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name:
            assert isinstance(following, ast.Expr)
            text = ast.literal_eval(following.value)
            listed = re.split(r"[:.]", text.replace("\n", " "))[0]
            return [re.sub(r" over .*| \(.*", "", part) for part in re.split(r", ", listed)]
    raise AssertionError(name)


def places(rows: Rows) -> dict[str, tuple[int, int]]:
    """Return (position, size) by field."""
    return {row["field"]: (int(row["position"]), int(row["size"])) for row in rows}


def bytes_in(text: str) -> bytes:
    """Return the bytes of the first code span."""
    span = re.search(r"`([0-9a-f ]+)`", text)
    return bytes.fromhex(span[1]) if span else b""


PAGE_TABLES = tables()


def test_every_number_of_the_layout_is_on_the_page() -> None:
    """Every name in layout.py and every table of the page has an entry in this test."""
    names = {name for name in vars(layout) if name.isupper()}
    assert names == STRUCTS | set(CHECKED) | ELSEWHERE | {name.upper().replace(" ", "_") for name in CONSTANTS}
    others = {"constants", "word", "control records", "examples", "control", "lock word", "wake", "tail"}
    others |= {"cursor", "position", "group", "entry word", "methods", "lock", "name"}
    assert set(PAGE_TABLES) == STRUCTS | others


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_a_structure_has_the_fields_of_its_table(name: str) -> None:
    """The tables of the page have position, size and name of every field of a structure, in order."""
    rows = PAGE_TABLES[name]
    assert [(int(row["position"]), int(row["size"])) for row in rows] == fields_of(getattr(layout, name))
    assert [row["field"] for row in rows] == names_of(name)


@pytest.mark.parametrize(("checked", "name"), CHECKED.items())
def test_a_crc_covers_everything_before_it(checked: str, name: str) -> None:
    """A checksum covers every byte before it, as the tables say."""
    before, crc = getattr(layout, checked), PAGE_TABLES[name][-1]
    assert crc["field"] == "crc"
    assert int(crc["position"]) == before.size
    assert getattr(layout, name).format == before.format + "I"


def test_the_constants_are_those_of_the_page() -> None:
    """All constants of the code are those of the page."""
    assert {row["name"]: int(row["value"]) for row in PAGE_TABLES["constants"]} == CONSTANTS


def test_the_word_has_these_bits() -> None:
    """The word of a record header consists of its length and two flags."""
    bits = {row["field"]: row["bits"] for row in PAGE_TABLES["word"]}
    first, last = map(int, bits.pop("length").split(" to "))
    assert layout.LENGTH_MASK == layout.MAX_PAYLOAD == (1 << (last + 1)) - (1 << first)
    masks = {field: 1 << int(bit) for field, bit in bits.items()}
    assert masks == {"control record": layout.CONTROL_RECORD, "batch continues": layout.BATCH_CONTINUES}


def test_the_payload_follows_the_record_header() -> None:
    """The payload begins at the position behind the record header that the page gives."""
    assert layout.RECORD_HEADER.size == layout.RECORD_HEADER_SIZE
    assert f"The payload follows at position {layout.RECORD_HEADER_SIZE}." in PAGE.read_text(encoding="utf-8")


def test_the_kinds_of_control_records_are_those_of_the_page() -> None:
    """The first byte of a control record is the kind on the page, and the seal is always the same."""
    kinds = [bytes_in(row["payload"]) for row in PAGE_TABLES["control records"]]
    assert kinds == [layout.SEAL, bytes([layout.TRANSACTION]), bytes([layout.SINK])]
    meaning = f"{layout.TRANSACTION}: a transaction; {layout.SINK}: a numbered batch"
    assert meaning == PAGE_TABLES["PRODUCER_RECORD"][0]["meaning"]


def test_the_examples_are_records(impl: SimpleNamespace) -> None:
    """The example records of the page are valid."""
    flags = {"": 0, "batch continues": layout.BATCH_CONTINUES, "control record": layout.CONTROL_RECORD}
    assert len(PAGE_TABLES["examples"]) >= 5
    for row in PAGE_TABLES["examples"]:
        payload, expected = bytes_in(row["payload"]), bytes_in(row["record"])
        buffer = bytearray(len(expected))
        end = impl.write_record(buffer, 0, int(row["offset"]), flags[row["flags"]], payload)
        assert (buffer, end) == (expected, len(expected))


def test_segments() -> None:
    """The page gives the magic number, header size and named positions of a segment."""
    rows, at = PAGE_TABLES["SEGMENT_HEADER"], places(PAGE_TABLES["SEGMENT_HEADER"])
    assert bytes_in(rows[0]["meaning"]) == layout.SEGMENT_MAGIC
    assert layout.SEGMENT_HEADER.size == layout.SEGMENT_HEADER_SIZE
    assert f"`position = {layout.SEGMENT_HEADER_SIZE} + offset - begin`" in PAGE.read_text(encoding="utf-8")
    for field in ("begin", "end", "first sequence", "previous end", "created", "crc", "end crc"):
        assert at[field][0] == getattr(layout, "SEGMENT_" + field.upper().replace(" ", "_"))
    assert f"{layout.SEGMENT_DIGITS} decimal digits" in PAGE.read_text(encoding="utf-8")
    covered = re.search(r"positions 0 to (\d+), then (\d+) to (\d+)", rows[8]["meaning"])
    assert covered is not None
    assert tuple(map(int, covered.groups())) == (
        layout.SEGMENT_END - 1,
        layout.SEGMENT_END + 8,
        layout.SEGMENT_CRC - 1,
    )


def test_compressed_segments() -> None:
    """The page gives magic number, positions, methods and sizes of a compressed segment."""
    text = re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))
    magic = re.search(r"the magic is `([0-9a-f ]+)`", text)
    assert magic is not None
    assert bytes.fromhex(magic[1]) == layout.COMPRESSED_MAGIC
    assert len(layout.COMPRESSED_MAGIC) == len(layout.SEGMENT_MAGIC)
    assert f"At position {layout.COMPRESSED_EXTRA} follows:" in text
    assert f"The table follows at position {layout.COMPRESSED_TABLE}," in text
    assert f"1 to {layout.BLOCK_SIZE};" in places_text("COMPRESSED", "block size")
    assert {row["name"]: int(row["method"]) for row in PAGE_TABLES["methods"]} == NUMBERS
    assert {layout.METHOD_ZSTD, layout.METHOD_LZ4, layout.METHOD_GZIP} == set(NUMBERS.values())


def places_text(table: str, field: str) -> str:
    """Return what a table says about a field."""
    return next(row["meaning"] for row in PAGE_TABLES[table] if row["field"] == field)


def test_the_control_file() -> None:
    """The page gives the position of every word and part of the control file."""
    first, second = layout.CHECKPOINT_SLOTS
    assert places(PAGE_TABLES["control"]) == {
        "identity": (0, layout.CONTROL_IDENTITY.size),
        "writer lock": (layout.WRITER_LOCK, 4),
        "epoch": (layout.EPOCH, 4),
        "write tail": (layout.WRITE_TAIL, 8),
        "append tail": (layout.APPEND_TAIL, 8),
        "reserved end": (layout.RESERVED_END, 8),
        "allocated end": (layout.ALLOCATED_END, 8),
        "oldest offset": (layout.OLDEST_OFFSET, 8),
        "purged offset": (layout.PURGED_OFFSET, 8),
        "state": (layout.STATE, 4),
        "wake": (layout.WAKE, 4),
        "durable offset": (layout.DURABLE_OFFSET, 8),
        "flush lock": (layout.FLUSH_LOCK, 4),
        "failed flushes": (layout.FAILED_FLUSHES, 4),
        "registrations": (layout.REGISTRATIONS, 4),
        "flushes": (layout.FLUSHES, 4),
        "compressed offset": (layout.COMPRESSED_OFFSET, 8),
        "waiting loops": (layout.WAITING_LOOPS, layout.PROCESS_SLOT_COUNT // 8),
        "registry": (layout.REGISTRY, 4),
        "maintenance errors": (layout.MAINTENANCE_ERRORS, 4),
        "reclaiming": (layout.RECLAIMING, 8),
        "reclaimed segments": (layout.RECLAIMED_SEGMENTS, 8),
        "reclaimed bytes": (layout.RECLAIMED_BYTES, 8),
        "maintained": (layout.MAINTAINED, 8),
        "maintainer": (layout.MAINTAINER, 4),
        "quiet offset": (layout.QUIET_OFFSET, 8),
        "quiet since": (layout.QUIET_SINCE, 8),
        "poisoned before": (layout.POISONED_BEFORE, 8),
        "capacity wake": (layout.CAPACITY_WAKE, 4),
        "capacity watched": (layout.CAPACITY_WATCHED, 4),
        "capacity turn": (layout.CAPACITY_TURN, 4),
        "capacity wanted": (layout.CAPACITY_WANTED, 8),
        "messages wanted": (layout.CAPACITY_WANTED + 8, 8),
        "capacity loops": (layout.CAPACITY_LOOPS, layout.PROCESS_SLOT_COUNT // 8),
        "checkpoint 0": (first, layout.CHECKPOINT.size),
        "checkpoint 1": (second, layout.CHECKPOINT.size),
        "lock file": (layout.LOCK_FILE, 8),
        "opener": (layout.PROCESS_SLOTS + 8, layout.PROCESS.size - 8),
        "process slots": (
            layout.PROCESS_SLOTS + layout.PROCESS_SLOT_SIZE,
            (layout.PROCESS_SLOT_COUNT - 1) * layout.PROCESS_SLOT_SIZE,
        ),
        "end of file": (layout.CONTROL_SIZE, 0),
    }
    rows = {row["field"]: row["meaning"] for row in PAGE_TABLES["control"]}
    masks = {
        "state": [layout.STATE_SEALED, layout.STATE_DEFERRED],
        "wake": [layout.WAKE_THREADS, layout.WAKE_LOOPS],
        "registry": [layout.REGISTRY_DECIDED],
        "flushes": [layout.FLUSHING_SEGMENTS, layout.FLUSHING_CONTROL],
    }
    assert max(masks["flushes"]) < layout.FLUSHES_STEP
    for field, expected in masks.items():
        assert [1 << int(bit) for bit in re.findall(r"bit (\d+):", rows[field])] == expected
    assert f"(by {layout.REGISTRY_COUNT}, bit 0 stays)" in PAGE.read_text(encoding="utf-8")
    assert bytes_in(PAGE_TABLES["CONTROL_IDENTITY"][0]["meaning"]) == layout.CONTROL_MAGIC
    channel_id = next(row for row in PAGE_TABLES["CONTROL_IDENTITY"] if row["field"] == "channel id")
    assert int(channel_id["position"]) == layout.CONTROL_CHANNEL
    assert f"The pages from position {layout.PROCESS_SLOTS} on" in PAGE.read_text(encoding="utf-8")


def bits_of(rows: Rows) -> dict[str, int]:
    """Return the mask of each field of a word."""
    masks = {}
    for row in rows:
        first, _, last = row["bits"].partition(" to ")
        masks[row["field"]] = (1 << int(last or first) + 1) - (1 << int(first))
    return masks


def test_lock_words_and_the_wake_word_have_these_bits() -> None:
    """The bits of the lock words and the wake word on the page cover all 32, and none twice."""
    lock, wake = bits_of(PAGE_TABLES["lock word"]), bits_of(PAGE_TABLES["wake"])
    generations = (1 << layout.LOCK_GENERATION_BITS) - 1
    assert lock == {
        "contended": layout.CONTENDED,
        "generation": generations << layout.LOCK_GENERATION_SHIFT,
        "slot": layout.PROCESS_SLOT_COUNT - 1 << layout.LOCK_SLOT_SHIFT,
    }
    assert wake["threads"] == layout.WAKE_THREADS
    assert wake["loops"] == layout.WAKE_LOOPS
    assert wake["generation"] == (1 << 32) - layout.WAKE_GENERATION
    for masks in (lock, wake):
        assert sum(masks.values()) == (1 << 32) - 1
    assert f"1 to {generations}:" in PAGE_TABLES["PROCESS"][0]["meaning"]


def test_process_slots_fill_their_pages() -> None:
    """A process slot fills a cache line, and the table of slots ends with the file."""
    assert layout.PROCESS.size == layout.PROCESS_SLOT_SIZE == layout.CACHE_LINE
    assert layout.PROCESS_SLOTS + layout.PROCESS_SLOT_COUNT * layout.PROCESS_SLOT_SIZE == layout.CONTROL_SIZE
    slots = f"a table of {layout.PROCESS_SLOT_COUNT} slots of {layout.PROCESS_SLOT_SIZE} bytes"
    assert slots in re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))


def test_tails_and_cursors() -> None:
    """The slots of tails and cursors are at the distances and positions of the page."""
    tail, cursor = places(PAGE_TABLES["tail"]), places(PAGE_TABLES["cursor"])
    slots = [(distance, layout.TAIL_SLOT.size) for distance in layout.TAIL_SLOTS]
    assert tail == {"offset": (0, 8), "slot 0": slots[0], "slot 1": slots[1]}
    slots = [(position, layout.CURSOR.size) for position in layout.CURSOR_SLOTS]
    assert cursor == {
        "slot 0": slots[0],
        "slot 1": slots[1],
        "owner": (layout.CURSOR_OWNER, layout.HOLDER.size),
        "term": (layout.CURSOR_TERM, layout.TERM.size),
        "departure": (layout.CURSOR_DEPARTURE, layout.DEPARTURE.size),
        "origin": (layout.CURSOR_ORIGIN, layout.ORIGIN.size),
        "end of file": (layout.CURSOR_SIZE, 0),
    }


def test_the_lock_file() -> None:
    """The page gives every byte of the lock file that is locked, and the ranges of names up to the largest position."""
    assert places(PAGE_TABLES["lock"]) == {
        "process slots": (1, layout.PROCESS_SLOT_COUNT - 1),
        "mode byte": (layout.MODE_BYTE, 1),
        "opening byte": (layout.OPENING_BYTE, 1),
        "maintenance byte": (layout.MAINTENANCE_BYTE, 1),
        "names": (layout.NAME_LOCKS, layout.NAME_LOCK_COUNT * layout.NAME_LOCK_SIZE),
    }
    assert layout.NAME_LOCKS + layout.NAME_LOCK_COUNT * layout.NAME_LOCK_SIZE == 1 << 63
    assert f"2^51 ranges of {layout.NAME_LOCK_SIZE} bytes" in PAGE.read_text(encoding="utf-8")
    assert layout.NAME_LOCK_COUNT == 1 << 51
    assert places(PAGE_TABLES["name"]) == {
        "owner": (layout.NAME_OWNER, 1),
        "remover": (layout.NAME_REMOVER, 1),
        "members": (layout.NAME_MEMBERS, layout.PROCESS_SLOT_COUNT),
    }


def test_groups() -> None:
    """The page gives the words behind a group's head, its ring, and the bits of an entry's word."""
    group, entry = places(PAGE_TABLES["group"]), places(PAGE_TABLES["ENTRY"])
    assert group == {
        "head": (0, layout.GROUP_RING),
        "initialized": (layout.GROUP_INITIALIZED, 8),
        "head number": (layout.GROUP_HEAD, 8),
        "lock": (layout.GROUP_LOCK, 4),
        "tail number": (layout.GROUP_TAIL, 8),
        "next offset": (layout.GROUP_NEXT, 8),
        "next sequence": (layout.GROUP_NEXT_SEQUENCE, 8),
        "ready": (layout.GROUP_READY, 8),
        "due": (layout.GROUP_DUE, 8),
        "ring": (layout.GROUP_RING, layout.GROUP_ENTRIES * layout.GROUP_ENTRY_SIZE),
    }
    assert layout.GROUP_RING + group["ring"][1] == layout.GROUP_SIZE
    assert f"{layout.GROUP_ENTRIES} entries of {layout.GROUP_ENTRY_SIZE} bytes" in PAGE.read_text(encoding="utf-8")
    fields = {"offset": layout.ENTRY_OFFSET, "end": layout.ENTRY_END, "sequence": layout.ENTRY_SEQUENCE}
    fields |= {"word": 0, "deadline": layout.ENTRY_DEADLINE}
    assert {field: position for field, (position, _) in entry.items()} == fields


def test_the_word_of_an_entry_has_these_bits() -> None:
    """The word of a ring entry consists of state, attempt, token and owner, up to the last bit."""
    rows = PAGE_TABLES["entry word"]
    bits = {row["field"]: tuple(map(int, row["bits"].split(" to "))) for row in rows}
    masks = {field: (first, (1 << last - first + 1) - 1) for field, (first, last) in bits.items()}
    assert masks == {
        "state": (0, layout.ENTRY_STATE),
        "attempt": (layout.ENTRY_ATTEMPT_SHIFT, layout.ENTRY_ATTEMPTS),
        "token": (layout.ENTRY_TOKEN_SHIFT, layout.ENTRY_TOKENS),
        "owner": (layout.ENTRY_OWNER_SHIFT, (1 << 32 - layout.LOCK_GENERATION_SHIFT) - 1),
    }
    states = dict(re.findall(r"(\d) (\w+)", rows[0]["meaning"]))
    names = {"acked": "ACKED", "out": "OUT", "ready": "READY", "delayed": "DELAYED", "skipped": "SKIPPED"}
    assert {names[name]: int(number) for number, name in states.items()} == {
        name: getattr(layout, f"ENTRY_{name}") for name in names.values()
    }


def test_positions() -> None:
    """The two slots of a position are in one page, and those of a consumer in one sector with its origin."""
    slots = [(position, layout.POSITION.size) for position in layout.POSITION_SLOTS]
    end = {"end of file": (layout.POSITION_SIZE, 0)}
    assert places(PAGE_TABLES["position"]) == {"slot 0": slots[0], "slot 1": slots[1]} | end
    assert max(layout.POSITION_SLOTS) + layout.POSITION.size <= 512
    assert layout.CURSOR_ORIGIN + layout.ORIGIN.size <= 512


@pytest.mark.parametrize("name", ["control", "cursor", "position"])
def test_nothing_overlaps(name: str) -> None:
    """No two parts of a file share a byte, and all of them lie inside, tail slots included."""
    parts = [(position, size) for position, size in places(PAGE_TABLES[name]).values()]
    if name == "control":
        parts += [
            (tail + distance, layout.TAIL_SLOT.size)
            for tail in (layout.WRITE_TAIL, layout.APPEND_TAIL)
            for distance in layout.TAIL_SLOTS
        ]
    parts.sort()
    for (position, size), (following, _) in pairwise(parts):
        assert position + size <= following


def test_shared_words_are_aligned() -> None:
    """Every shared word is aligned, so that it is loaded and stored as a whole."""
    for position, size in places(PAGE_TABLES["control"]).values():
        if size in (4, 8):
            assert position % size == 0
    assert layout.SEGMENT_END % 8 == 0


def test_the_checkpoints_have_a_page_of_their_own() -> None:
    """The checkpoints have a page of their own, and a torn sector of one does not reach the other."""
    pages = {slot // layout.PAGE for slot in layout.CHECKPOINT_SLOTS}
    assert len(pages) == 1
    others = [position for field, (position, size) in places(PAGE_TABLES["control"]).items() if "check" not in field]
    assert pages.isdisjoint(position // layout.PAGE for position in others)
    assert layout.CHECKPOINT_SLOTS[1] - layout.CHECKPOINT_SLOTS[0] >= 512


def test_the_text_gives_the_numbers_of_the_tables() -> None:
    """Numbers that a sentence of the page repeats are those of the tables."""
    text = re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))
    assert f"format version **{layout.FORMAT_VERSION}**" in text
    assert f"a header of {layout.SEGMENT_HEADER_SIZE} bytes" in text
    assert f"Entries of {layout.INDEX_ENTRY.size} bytes" in text
    assert f"{layout.CONTROL_SIZE // layout.PAGE} pages, mapped by every process" in text
    assert f"adds {layout.WAKE_GENERATION} to the word" in text
    assert f"slots 1 to {layout.PROCESS_SLOT_COUNT - 1} of {layout.PROCESS_SLOT_SIZE} bytes" in text
    assert layout.OFFSET_GAP == 2**40
    assert "a multiple of 2^40 that is more than 2^39 beyond" in text
    assert layout.INDEX_BYTES == 64 * 1024
    assert "64 KiB or more after the last entry" in text
    assert "`0xE3069283`" in text
