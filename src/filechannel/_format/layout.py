"""Magic numbers, field positions and struct formats of every file: the only copy in Python.

`docs/format.md` describes the same bytes in prose, and a test compares its tables with this module. `_native/layout.h`
repeats the few numbers that the C core needs, and another test compares those. All integers are little-endian. Offsets
count record bytes from the creation of the channel and have 64 bits.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

FORMAT_VERSION: Final = 2
PAGE: Final = 4096
CACHE_LINE: Final = 64
LARGEST_OFFSET: Final = 1 << 62
"""No offset and no sequence is larger, so that additions do not overflow a signed word. A larger one is damaged."""
LARGEST_GENERATION: Final = (1 << 63) - 1
"""No slot of a stored position or checkpoint has a higher generation, so that the next one fits, too."""
LARGEST_TIME: Final = 1 << 63
"""The largest time of an index entry: the year 2262."""

# --- Records ----------------------------------------------------------------------------------------------

RECORD_HEADER: Final = Struct("<II")
"""word, crc. The payload follows."""
RECORD_HEADER_SIZE: Final = RECORD_HEADER.size
BATCH_CONTINUES: Final = 1 << 31
"""Bit of the word: the next record belongs to the same batch."""
CONTROL_RECORD: Final = 1 << 30
"""Bit of the word: a control record, which is never delivered and not counted in `sequence`."""
LENGTH_MASK: Final = (1 << 30) - 1
MAX_PAYLOAD: Final = LENGTH_MASK
RECORD_CHECKED: Final = Struct("<IQ")
"""word, offset: what the CRC covers after the payload."""

SEAL: Final = b"\x01seal"
"""Payload of the control record that seals a channel; the first byte is the kind."""
TRANSACTION: Final = 2
"""Kind of the header record in front of the outputs of a transaction: a PRODUCER_RECORD."""
SINK: Final = 3
"""Kind of the header record in front of a numbered batch: a PRODUCER_RECORD."""
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
"""CRC-32C over every header byte before it except `end`, which changes during the life of the segment."""
SEGMENT_END_CRC: Final = 60
"""CRC-32C over begin and end; 0 while active."""
SEGMENT_DIGITS: Final = 20
"""How many digits the offset has in the name of a segment file."""
SEGMENT_EXTENT: Final = Struct("<QQ")
"""begin, end: what the end crc covers."""

COMPRESSED_MAGIC: Final = b"fchan\x1aSZ"
"""A compressed segment begins with a segment header that has this magic and whose end is set."""
COMPRESSED_EXTRA: Final = SEGMENT_HEADER_SIZE
"""Position of the fields that only a compressed segment has."""
COMPRESSED: Final = Struct("<QIIII")
"""next sequence, method, block size, blocks, crc over those four and the table."""
COMPRESSED_TABLE: Final = COMPRESSED_EXTRA + COMPRESSED.size
"""Position of the block table, which has one entry per block."""
COMPRESSED_BLOCK: Final = Struct("<QII")
"""position, length, crc over the stored bytes."""
BLOCK_SIZE: Final = 1 << 20
"""How many bytes of records are compressed together, at most."""
METHOD_ZSTD: Final = 1
METHOD_LZ4: Final = 2
METHOD_GZIP: Final = 3

OFFSET_GAP: Final = 1 << 40
"""After a cut the log continues at a multiple of this, at least half of it away, so no offset is ever used twice."""
INDEX_BYTES: Final = 64 * 1024
INDEX_SECONDS: Final = 1.0
INDEX_ENTRY: Final = Struct("<QQQII")
"""offset, sequence, time (ns since the epoch), crc over those three, zero."""
INDEX_CHECKED: Final = Struct("<QQQ")

# --- Control ----------------------------------------------------------------------------------------------

CONTROL_MAGIC: Final = b"fchan\x1aCT"
CONTROL_SIZE: Final = 18 * PAGE
CONTROL_RESERVE: Final = 16 * PAGE
"""Disk space after the pages, which is never mapped: released when something must be stored on a full disk."""
CONTROL_IDENTITY: Final = Struct("<8sII16s16sQQQI")
"""magic, version, life, channel id, boot id, device, inode, mount, crc over all before it."""
CONTROL_CHANNEL: Final = 16
"""Position of the channel id."""

LOCK_FILE: Final = 112
"""Inode number of the lock file, on which every process that has the channel open holds its locks."""
WRITER_LOCK: Final = 128
"""A lock word (see below): the lock holder may append."""
EPOCH: Final = 132
"""Changed after the active segment, its file or the durability changed: every writer must reload them."""
WRITE_TAIL: Final = 192
"""How far readers may read: a tail (see TAIL_SLOT)."""
APPEND_TAIL: Final = 384
"""What senders have appended under `FSYNC` and is not published yet: a tail."""
RESERVED_END: Final = 576
"""No writer has touched bytes at or beyond this offset since the last publish."""
ALLOCATED_END: Final = 584
"""The disk space of the active segment is allocated up to this offset."""
OLDEST_OFFSET: Final = 640
PURGED_OFFSET: Final = 648
"""What the last purge set OLDEST_OFFSET to: consumers before it resume there without an error."""
STATE: Final = 704
WAKE: Final = 768
"""The wake word: two bits say what waits for more records (threads, event loops), the rest is a generation."""
DURABLE_OFFSET: Final = 832
FLUSH_LOCK: Final = 896
"""A lock word: the lock holder may flush."""
FAILED_FLUSHES: Final = 900
"""How many flushes failed."""
REGISTRATIONS: Final = 904
"""Incremented after a consumer name was registered or removed: processes that cache the names must read them again."""
FLUSHES: Final = 908
"""Which files are being flushed, and how many flushes there were: a flush makes pages read-only, see `Writer`."""
FLUSHING_SEGMENTS: Final = 1
FLUSHING_CONTROL: Final = 2
FLUSHES_STEP: Final = 4
"""Added after a flush of segments."""
CONTROL_FLUSHES_STEP: Final = 1 << 20
"""Added after a flush of the control file; the bits from here up seldom change otherwise."""
WAITING_LOOPS: Final = 960
"""One bit per process slot: an event loop of that process waits, and watches the FIFO `wake/<slot>`."""
REGISTRY: Final = 1088
"""Bit 0: RECLAIMING is valid. The rest is incremented after a consumer was placed where it had not been before."""
REGISTRY_DECIDED: Final = 1
REGISTRY_COUNT: Final = 2
"""What an increment adds."""
MAINTENANCE_ERRORS: Final = 1092
"""How often maintenance failed, in any process."""
RECLAIMING: Final = 1096
"""Where the oldest message begins, if REGISTRY says that this is valid; OLDEST_OFFSET is set to it afterwards."""
RECLAIMED_SEGMENTS: Final = 1104
RECLAIMED_BYTES: Final = 1112
"""How many segments were reclaimed, and how many bytes of records were in them."""
MAINTAINED: Final = 1120
"""When the channel was last maintained (ns since the epoch)."""
MAINTAINER: Final = 1128
"""Which process did that: its slot and generation, as in a lock word."""
QUIET_OFFSET: Final = 1136
QUIET_SINCE: Final = 1144
"""Where the log ended when maintenance last saw it move, and when that was (ns since the epoch)."""
POISONED_BEFORE: Final = 1280
"""Segments that begin below this offset are poisoned: not flushed, and their files not recycled, as a flush failed."""
COMPRESSED_OFFSET: Final = 1344
"""Finished segments before this offset are compressed, or not worth compressing: they are not tried again."""

CAPACITY_WAKE: Final = 1152
"""As WAKE, for senders that wait for capacity: CAPACITY_LOOPS says in which processes."""
CAPACITY_WATCHED: Final = 1156
"""Not 0 while a full channel lets senders wait: only then do processes that move a consumer check CAPACITY_WAKE."""
CAPACITY_TURN: Final = 1160
"""0, or the process whose senders get capacity first (fairness): slot and generation, as in a lock word."""
CAPACITY_WANTED: Final = 1168
"""Bytes and messages, a u64 each, that the first sender of that process waits for."""
CAPACITY_LOOPS: Final = 1408
"""As WAITING_LOOPS, for senders."""

STATE_SEALED: Final = 1
STATE_DEFERRED: Final = 2
"""`FSYNC`: writers move the append tail, and the flush moves the write tail, which readers see."""
WAKE_THREADS: Final = 1
"""A thread sleeps on the word itself."""
WAKE_LOOPS: Final = 2
"""An event loop waits; WAITING_LOOPS says in which processes."""
WAKE_GENERATION: Final = 4
"""Added when the bits are cleared."""

TAIL_SLOT: Final = Struct("<QQQI")
"""end offset, next sequence, begin of the segment, crc over those three."""
TAIL_SLOTS: Final = (64, 128)
"""A tail is one u64, the current offset, and after it two slots at these distances. The slot whose end equals the
offset is valid; the other one is free to be filled for the next publish.
"""
TAIL_CHECKED: Final = Struct("<QQQ")

CHECKPOINT_SLOTS: Final = (PAGE, PAGE + PAGE // 2)
"""Positions of the two checkpoint slots, in a page of their own that only a flush writes."""
CHECKPOINT: Final = Struct("<QQQQQII")
"""generation, offset, sequence, oldest offset, time, state, crc over those six."""
CHECKPOINT_CHECKED: Final = Struct("<QQQQQI")

CONTENDED: Final = 1
"""Bit of a lock word, which is 0 while free: a thread sleeps until it is released."""
LOCK_GENERATION_SHIFT: Final = 1
LOCK_GENERATION_BITS: Final = 21
LOCK_SLOT_SHIFT: Final = 22
"""A lock word names the process that holds it: its slot, and the generation of the slot."""

PROCESS_SLOTS: Final = 2 * PAGE
"""Pages 2 to 17 are the process table, one slot per process."""
PROCESS_SLOT_COUNT: Final = 1024
PROCESS_SLOT_SIZE: Final = 64
PROCESS: Final = Struct("<IIQQ40s")
"""generation, waiting, pid, since (ns since the epoch), host name. The last three are for people only.
A process keeps its slot alive with a kernel lock on the first byte, where no reader can block it: see `lock_file`.
Slot 0 belongs to no process. Its last three fields describe the process that holds OPENING_BYTE.
"""
PROCESS_WAITING: Final = 4
"""Position of `waiting` in a slot: 1 while senders of the process wait for capacity, else 0."""
HOLDER: Final = Struct("<QQ64s")
"""pid, since (ns since the epoch), host name: which process owns a consumer name, for error messages only."""

# --- Lock file --------------------------------------------------------------------------------------------
# It has no content: only the kernel locks on these bytes count. Byte n, from 1 on, belongs to process slot n.

MODE_BYTE: Final = PROCESS_SLOT_COUNT
"""Held by every process that writes: shared if it uses the C core, exclusively if it is pure Python."""
OPENING_BYTE: Final = PROCESS_SLOT_COUNT + 1
"""The open lock: held exclusively by the process that opens, recovers or configures the channel."""
MAINTENANCE_BYTE: Final = PROCESS_SLOT_COUNT + 2
"""The maintenance lock: held exclusively by the process that maintains the channel, for the duration of one pass."""
NAME_LOCKS: Final = 1 << 62
"""First byte of the name locks. Those of a name begin at NAME_LOCKS + h * NAME_LOCK_SIZE, where h is the 8-byte
BLAKE2b hash (little-endian) of the name as it appears in file names, modulo NAME_LOCK_COUNT.
"""
NAME_LOCK_SIZE: Final = 2 * PROCESS_SLOT_COUNT
NAME_LOCK_COUNT: Final = 1 << 51
NAME_OWNER: Final = 0
"""Held exclusively by the owner of the name, or shared by the members of a group."""
NAME_REMOVER: Final = 1
"""Held by a process that removes or moves a name without an owner, before it acquires NAME_OWNER."""
NAME_MEMBERS: Final = PROCESS_SLOT_COUNT
"""One byte per process slot, held as long as that process has a member of the group."""

# --- Cursors ----------------------------------------------------------------------------------------------

CURSOR_SIZE: Final = PAGE
CURSOR_SLOTS: Final = (0, 64)
CURSOR: Final = Struct("<QQQQI")
"""generation, offset, sequence, time, crc over those four."""
CURSOR_CHECKED: Final = Struct("<QQQQ")
CURSOR_OWNER: Final = 128
"""Position of a HOLDER: the last owner of the name. The lock on NAME_OWNER says whether it still is the owner."""
CURSOR_TERM: Final = 256
"""Position of a TERM; zeros for a name that never expires."""
CURSOR_DEPARTURE: Final = 320
"""Position of a DEPARTURE."""
TERM: Final = Struct("<QI")
"""expires (ns), crc over it: how long the name is kept without a live owner."""
TERM_CHECKED: Final = Struct("<Q")
DEPARTURE: Final = Struct("<QQI")
"""left (ns since the epoch), since (ns since the epoch), crc over those two.

`left` is when the owner that had opened the name at `since` had released it or died.
"""
DEPARTURE_CHECKED: Final = Struct("<QQ")
CURSOR_ORIGIN: Final = 448
"""Position of an ORIGIN; zeros for a name that was in no transaction since it was registered, or since a seek."""
ORIGIN: Final = Struct("<Q16sI")
"""origin, output channel id, crc over those two: which header records, in which channel, refer to this position."""
ORIGIN_CHECKED: Final = Struct("<Q16s")

# --- Producers --------------------------------------------------------------------------------------------

POSITION_SIZE: Final = PAGE
POSITION_SLOTS: Final = (0, 64)
POSITION: Final = Struct("<QQQQQII")
"""generation, record, origin, offset, sequence, life, crc over those six."""
POSITION_CHECKED: Final = Struct("<QQQQQI")


# --- Groups -----------------------------------------------------------------------------------------------

GROUP_INITIALIZED: Final = 384
"""A group file begins like a cursor. 0: the fields that follow are invalid and are rebuilt from the position."""
GROUP_HEAD: Final = 512
"""Number of the oldest entry that may not be acknowledged. Entry n is stored at index n modulo GROUP_ENTRIES."""
GROUP_LOCK: Final = 640
"""A lock word: the lock holder may claim messages and move the position."""
GROUP_TAIL: Final = 648
"""Number of the next new entry."""
GROUP_NEXT: Final = 656
"""Offset after the message that was last delivered for the first time."""
GROUP_NEXT_SEQUENCE: Final = 664
GROUP_READY: Final = 672
"""How many entries are ready to be redelivered."""
GROUP_DUE: Final = 680
"""When a member must check the entries, by the monotonic clock (ns); all bits set: never."""
GROUP_RING: Final = PAGE
GROUP_ENTRIES: Final = 4096
GROUP_ENTRY_SIZE: Final = CACHE_LINE
GROUP_SIZE: Final = GROUP_RING + GROUP_ENTRIES * GROUP_ENTRY_SIZE
ENTRY: Final = Struct("<QQQQQ")
"""word, offset, end, sequence, deadline: one message that was delivered. The word holds its state."""
ENTRY_OFFSET: Final = 8
ENTRY_END: Final = 16
ENTRY_SEQUENCE: Final = 24
ENTRY_DEADLINE: Final = 32
ENTRY_STATE: Final = 7
ENTRY_ACKED: Final = 0
ENTRY_OUT: Final = 1
ENTRY_READY: Final = 2
ENTRY_DELAYED: Final = 3
ENTRY_SKIPPED: Final = 4
ENTRY_ATTEMPT_SHIFT: Final = 3
ENTRY_ATTEMPTS: Final = (1 << 10) - 1
ENTRY_TOKEN_SHIFT: Final = 13
ENTRY_TOKENS: Final = (1 << 20) - 1
ENTRY_OWNER_SHIFT: Final = 33
"""The bits above are a lock word without its lowest bit: slot and generation of the process that has the message."""
