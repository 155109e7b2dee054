"""Magic numbers and field offsets of every file: the only copy in Python.

`docs/format.md` describes the same bytes for people and a test compares its tables with this module;
`_native/layout.h` repeats the few numbers the C core needs and another test compares those.
All integers are little-endian. Offsets count record bytes from the birth of the channel and are 64-bit.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

FORMAT_VERSION: Final = 2
PAGE: Final = 4096
CACHE_LINE: Final = 64

# --- Records ----------------------------------------------------------------------------------------------

RECORD_HEADER: Final = Struct("<II")
"""word, crc. The payload follows."""
RECORD_HEADER_SIZE: Final = RECORD_HEADER.size
BATCH_CONTINUES: Final = 1 << 31
"""Bit of the word: the next record belongs to the same batch."""
CONTROL_RECORD: Final = 1 << 30
"""Bit of the word: not a message; never delivered and not counted in `sequence`."""
LENGTH_MASK: Final = (1 << 30) - 1
MAX_PAYLOAD: Final = LENGTH_MASK
RECORD_CHECKED: Final = Struct("<IQ")
"""word, offset: what the CRC covers after the payload."""

SEAL: Final = b"\x01seal"
"""Payload of the control record that ends a channel; the first byte is the kind."""
TRANSACTION: Final = 2
"""Kind of the control record in front of the outputs of a transaction: a PRODUCER_RECORD."""
SINK: Final = 3
"""Kind of the control record in front of a batch that is known by its number: a PRODUCER_RECORD."""
PRODUCER_RECORD: Final = Struct("<B7sQQQQ")
"""kind, zeros, previous, origin, offset, sequence. The producer's key follows, in UTF-8, to the end of the record."""

# --- Segments ---------------------------------------------------------------------------------------------

SEGMENT_MAGIC: Final = b"fchan\x1aSG"
SEGMENT_HEADER: Final = Struct("<8sIIQQQQQII")
"""magic, version, id, begin, end, first sequence, previous end, created, crc, end crc."""
SEGMENT_HEADER_SIZE: Final = 64
SEGMENT_BEGIN: Final = 16
SEGMENT_END: Final = 24
"""Position of `end`: 0 while the segment is active, else the offset after its last record."""
SEGMENT_FIRST_SEQUENCE: Final = 32
SEGMENT_PREVIOUS_END: Final = 40
SEGMENT_CREATED: Final = 48
SEGMENT_CRC: Final = 56
"""CRC-32C over every header byte before it except `end`, which changes during the segment's life."""
SEGMENT_END_CRC: Final = 60
"""CRC-32C over begin and end; 0 while active."""
SEGMENT_DIGITS: Final = 20
"""Of the offset in the name of a segment's file."""
SEGMENT_EXTENT: Final = Struct("<QQ")
"""begin, end: what the end crc covers."""

COMPRESSED_MAGIC: Final = b"fchan\x1aSZ"
"""A compressed segment begins with a segment header, whose magic this is and whose end is set."""
COMPRESSED_EXTRA: Final = SEGMENT_HEADER_SIZE
"""Position of what a compressed segment has besides."""
COMPRESSED: Final = Struct("<QIIII")
"""next sequence, method, block size, blocks, crc over those four and the table."""
COMPRESSED_TABLE: Final = COMPRESSED_EXTRA + COMPRESSED.size
"""Position of the table, which has an entry for each block."""
COMPRESSED_BLOCK: Final = Struct("<QII")
"""position, length, crc over the stored bytes."""
BLOCK_SIZE: Final = 1 << 20
"""Bytes of records that are compressed together, at most."""
METHOD_ZSTD: Final = 1
METHOD_LZ4: Final = 2
METHOD_GZIP: Final = 3

OFFSET_JUMP: Final = 1 << 40
"""After a cut the log goes on at a multiple of this, at least half of it away: no offset is ever used twice."""
INDEX_BYTES: Final = 64 * 1024
INDEX_SECONDS: Final = 1.0
INDEX_ENTRY: Final = Struct("<QQQII")
"""offset, sequence, time (ns since the epoch), crc over those three, zero."""
INDEX_CHECKED: Final = Struct("<QQQ")

# --- Control ----------------------------------------------------------------------------------------------

CONTROL_MAGIC: Final = b"fchan\x1aCT"
CONTROL_SIZE: Final = 18 * PAGE
CONTROL_RESERVE: Final = 16 * PAGE
"""Disk space behind the pages that nobody maps: given up when something has to be stored although the disk is full."""
CONTROL_IDENTITY: Final = Struct("<8sII16s16sQQQI")
"""magic, version, life, channel id, boot id, device, inode, mount, crc over all before it."""
CONTROL_CHANNEL: Final = 16
"""Position of the channel id."""

LOCK_FILE: Final = 112
"""Inode number of the lock file that every process which has the channel open holds its locks on."""
WRITER_LOCK: Final = 128
"""A lock word (see below): whoever has it may append."""
EPOCH: Final = 132
"""Changed after the active segment, its file or the durability was: every writer has to look again."""
WRITE_TAIL: Final = 192
"""What readers see: a tail (see TAIL_SLOT)."""
APPEND_TAIL: Final = 384
"""What senders have appended under `FSYNC` and nobody sees yet: a tail."""
RESERVED_END: Final = 576
"""No writer has touched bytes at or beyond this offset since the last publish."""
ALLOCATED_END: Final = 584
"""The disk space of the active segment is allocated up to this offset."""
OLDEST_OFFSET: Final = 640
PURGED_OFFSET: Final = 648
"""What OLDEST_OFFSET was set to by the last purge: consumers before it go on there without being told."""
STATE: Final = 704
WAKE: Final = 768
"""Two bits that say who waits for more records, the rest a generation."""
DURABLE_OFFSET: Final = 832
FLUSH_LOCK: Final = 896
"""A lock word: whoever has it may flush."""
FAILED_FLUSHES: Final = 900
"""How many flushes the disk has refused."""
REGISTRATIONS: Final = 904
"""Counted up after a consumer's name was registered or removed: whoever knows the names has to look again."""
FLUSHES: Final = 908
"""Which files are being flushed, and how often any was: after a flush pages are read-only, see `Writer`."""
FLUSHING_SEGMENTS: Final = 1
FLUSHING_CONTROL: Final = 2
FLUSHES_STEP: Final = 4
"""Added after a flush of segments."""
CONTROL_FLUSHES_STEP: Final = 1 << 20
"""Added after a flush of the control file; the bits from here on change seldom otherwise."""
WAITING_LOOPS: Final = 960
"""A bit for each process slot: an event loop of that process waits, and watches the FIFO `wake/<slot>`."""
REGISTRY: Final = 1088
"""Bit 0: RECLAIMING is decided. The rest is counted up after a consumer was put where it had not been before."""
REGISTRY_DECIDED: Final = 1
REGISTRY_COUNT: Final = 2
"""What is added when it is counted up."""
MAINTENANCE_ERRORS: Final = 1092
"""How often maintenance failed, in any process."""
RECLAIMING: Final = 1096
"""Where the oldest message begins, once REGISTRY says that this is decided: OLDEST_OFFSET follows."""
RECLAIMED_SEGMENTS: Final = 1104
RECLAIMED_BYTES: Final = 1112
"""How many segments were reclaimed, and how many bytes of records were in them."""
MAINTAINED: Final = 1120
"""When somebody maintained the channel last (ns since the epoch)."""
MAINTAINER: Final = 1128
"""Who that was: the process slot and its generation, as in a lock word."""
QUIET_OFFSET: Final = 1136
QUIET_SINCE: Final = 1144
"""Where the log ended when maintenance saw it move last, and when that was (ns since the epoch)."""
GIVEN_UP: Final = 1280
"""No segment that begins below this offset is flushed or its file used again: the disk has refused one of them."""
COMPRESSED_OFFSET: Final = 1344
"""Finished segments before this offset are compressed, or not worth it: nobody need try again."""

ROOM: Final = 1152
"""As WAKE, for senders that wait until there is room: ROOM_LOOPS says of which processes."""
ROOM_WATCHED: Final = 1156
"""Not 0 while a full channel lets senders wait: only then whoever moves a consumer on looks at ROOM."""
ROOM_TURN: Final = 1160
"""0, or the process whose senders are served before those of others: slot and generation, as in a lock word."""
ROOM_WANTED: Final = 1168
"""Bytes and messages, a u64 each, that the first sender of that process waits for."""
ROOM_LOOPS: Final = 1408
"""As WAITING_LOOPS, for senders."""

STATE_SEALED: Final = 1
STATE_DEFERRED: Final = 2
"""`FSYNC`: writers move the append tail, and whoever flushes moves what readers see."""
WAKE_THREADS: Final = 1
"""A thread sleeps on the word itself."""
WAKE_LOOPS: Final = 2
"""An event loop waits; WAITING_LOOPS says of which processes."""
WAKE_GENERATION: Final = 4
"""What is added when the bits are cleared."""

TAIL_SLOT: Final = Struct("<QQQI")
"""end offset, next sequence, begin of the segment, crc over those three."""
TAIL_SLOTS: Final = (64, 128)
"""A tail is one u64, the offset that counts, and behind it two slots at these distances: the slot whose end
equals the offset is the truth, the other is free to be filled for the next publish."""
TAIL_CHECKED: Final = Struct("<QQQ")

CHECKPOINT_SLOTS: Final = (PAGE, PAGE + PAGE // 2)
"""Positions of the two checkpoint slots, in a page of their own that is written only by a flush."""
CHECKPOINT: Final = Struct("<QQQQQII")
"""generation, offset, sequence, oldest offset, time, state, crc over those six."""
CHECKPOINT_CHECKED: Final = Struct("<QQQQQI")

CONTENDED: Final = 1
"""Bit of a lock word, which is 0 while free: somebody sleeps for it."""
LOCK_GENERATION_SHIFT: Final = 1
LOCK_GENERATION_BITS: Final = 21
LOCK_SLOT_SHIFT: Final = 22
"""A lock word says which process holds it: its slot, and the slot's generation."""

PROCESS_SLOTS: Final = 2 * PAGE
"""Pages 2 to 17 are the table of processes, a slot each."""
PROCESS_SLOT_COUNT: Final = 1024
PROCESS_SLOT_SIZE: Final = 64
PROCESS: Final = Struct("<IIQQ40s")
"""generation, in line, pid, since (ns since the epoch), host name. The last three are for people only.
A process marks its slot with a kernel lock on the first byte, where no reader prevents it: see `lock_file`.
Slot 0 belongs to no process. Its last three fields describe the process that holds OPENING_BYTE."""
PROCESS_IN_LINE: Final = 4
"""Position of `in line` in a slot: 1 while senders of the process wait for room, else 0."""
HOLDER: Final = Struct("<QQ64s")
"""pid, since (ns since the epoch), host name: who holds a consumer's name, for error messages only."""

# --- Lock file --------------------------------------------------------------------------------------------
# It has no content: only the kernel's locks on these bytes count. Byte n, from 1 on, belongs to process slot n.

MODE_BYTE: Final = PROCESS_SLOT_COUNT
"""Held by every process that writes: shared, or exclusively without the C core."""
OPENING_BYTE: Final = PROCESS_SLOT_COUNT + 1
"""Held exclusively by the process that opens, recovers or configures the channel."""
MAINTENANCE_BYTE: Final = PROCESS_SLOT_COUNT + 2
"""Held exclusively by the process that maintains the channel, for as long as one pass takes."""
NAME_LOCKS: Final = 1 << 62
"""First of the bytes of consumers' names. Those of a name begin at NAME_LOCKS + h * NAME_LOCK_SIZE, where h is the
BLAKE2b hash of 8 bytes (little-endian) of the name as it stands in file names, modulo NAME_LOCK_COUNT."""
NAME_LOCK_SIZE: Final = 2 * PROCESS_SLOT_COUNT
NAME_LOCK_COUNT: Final = 1 << 51
NAME_OWNER: Final = 0
"""Held by the owner of the name exclusively, by the members of a group shared."""
NAME_REMOVER: Final = 1
"""Held by a process that removes or moves a name which has no owner, before it takes NAME_OWNER."""
NAME_MEMBERS: Final = PROCESS_SLOT_COUNT
"""A byte for each process slot, held as long as that process has a member of the group."""

# --- Cursors ----------------------------------------------------------------------------------------------

CURSOR_SIZE: Final = PAGE
CURSOR_SLOTS: Final = (0, 64)
CURSOR: Final = Struct("<QQQQI")
"""generation, offset, sequence, time, crc over those four."""
CURSOR_CHECKED: Final = Struct("<QQQQ")
CURSOR_OWNER: Final = 128
"""Position of a HOLDER: who owned the name last. Whether that process still does, the lock file says: NAME_OWNER."""
CURSOR_TERM: Final = 256
"""Position of a TERM; zeros for a name that stays until it is removed."""
CURSOR_DEPARTURE: Final = 320
"""Position of a DEPARTURE."""
TERM: Final = Struct("<QI")
"""expires (ns), crc over it: how long the name stays without a live owner."""
TERM_CHECKED: Final = Struct("<Q")
DEPARTURE: Final = Struct("<QQI")
"""left (ns since the epoch), since (ns since the epoch), crc over those two: when the owner that came then was gone."""
DEPARTURE_CHECKED: Final = Struct("<QQ")
CURSOR_ORIGIN: Final = 448
"""Position of an ORIGIN; zeros for a name that was in no transaction since it was registered, or since a seek."""
ORIGIN: Final = Struct("<Q16sI")
"""origin, output channel id, crc over those two: which control records, in which channel, speak of this position."""
ORIGIN_CHECKED: Final = Struct("<Q16s")

# --- Producers --------------------------------------------------------------------------------------------

POSITION_SIZE: Final = PAGE
POSITION_SLOTS: Final = (0, 64)
POSITION: Final = Struct("<QQQQQII")
"""generation, record, origin, offset, sequence, life, crc over those six."""
POSITION_CHECKED: Final = Struct("<QQQQQI")


# --- Groups -----------------------------------------------------------------------------------------------

GROUP_BEGUN: Final = 384
"""A group's file begins like a cursor. 0: what follows counts for nothing, and is made anew from the position."""
GROUP_HEAD: Final = 512
"""Number of the oldest entry that may not be settled. Entry n lies in place n modulo GROUP_ENTRIES."""
GROUP_LOCK: Final = 640
"""A lock word: whoever has it may hand out, and move the position."""
GROUP_TAIL: Final = 648
"""Number of the entry that is made next."""
GROUP_NEXT: Final = 656
"""Offset behind what was handed out for the first time last."""
GROUP_NEXT_SEQUENCE: Final = 664
GROUP_READY: Final = 672
"""How many entries come again now."""
GROUP_DUE: Final = 680
"""When somebody has to look at the entries, by the monotonic clock (ns); all bits set: never."""
GROUP_RING: Final = PAGE
GROUP_ENTRIES: Final = 4096
GROUP_ENTRY_SIZE: Final = CACHE_LINE
GROUP_SIZE: Final = GROUP_RING + GROUP_ENTRIES * GROUP_ENTRY_SIZE
ENTRY: Final = Struct("<QQQQQ")
"""word, offset, end, sequence, deadline. A message that was handed out; the word says what became of it."""
ENTRY_OFFSET: Final = 8
ENTRY_END: Final = 16
ENTRY_SEQUENCE: Final = 24
ENTRY_DEADLINE: Final = 32
ENTRY_STATE: Final = 7
ENTRY_SETTLED: Final = 0
ENTRY_OUT: Final = 1
ENTRY_READY: Final = 2
ENTRY_DELAYED: Final = 3
ENTRY_PASSED: Final = 4
ENTRY_ATTEMPT_SHIFT: Final = 3
ENTRY_ATTEMPTS: Final = (1 << 10) - 1
ENTRY_TOKEN_SHIFT: Final = 13
ENTRY_TOKENS: Final = (1 << 20) - 1
ENTRY_OWNER_SHIFT: Final = 33
"""Above it is a lock word without its lowest bit: the slot and the generation of the process that has the message."""
