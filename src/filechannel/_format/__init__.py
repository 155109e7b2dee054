"""Bytes <-> fields, and the hot paths over them. No files, no event loops.

Two twins have the same names and signatures: the C core, and the modules beside it in Python, which are its readable
reference. `FILECHANNEL_PURE=1` forces the reference; it is also what an install without a compiler gets.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from .nothing import NOTHING, Nothing

if TYPE_CHECKING:
    PURE: bool

    from .checksum import crc32c
    from .clock import begin_turn, turn_is_over
    from .columns import Columns
    from .cores import AckCore, ReceiveCore, SendCore, own_receive, own_send
    from .forking import close_in_child, keep_in_child
    from .map import Map
    from .memory import can_store, populate, populate_settle, populate_soon, show_file
    from .mount import link_count, mount_id, named_inode
    from .mutex import Guard, Mutex, ensured, holds_mutex, resolve
    from .reader import Reader
    from .records import find_record, join_records, read_record, scan_records, split_records, write_record
    from .ring import move_on
    from .rows import RowEncoder
    from .send_path import SendPath
    from .waiting import release_word, set_bit, spin_above, take_bits, take_word, wait_word, wake_waiters, wake_word
    from .words import add_u64, fence, load_u32, load_u64, store_u32, store_u64, swap_if_u32, swap_if_u64
    from .writer import Writer
else:
    PURE = bool(os.environ.get("FILECHANNEL_PURE"))
    if not PURE:
        try:
            from ._core import (
                AckCore,
                Columns,
                Guard,
                Map,
                Mutex,
                Reader,
                ReceiveCore,
                RowEncoder,
                SendCore,
                SendPath,
                Writer,
                add_u64,
                begin_turn,
                can_store,
                close_in_child,
                crc32c,
                ensured,
                fence,
                find_record,
                holds_mutex,
                join_records,
                keep_in_child,
                link_count,
                load_u32,
                load_u64,
                mount_id,
                move_on,
                named_inode,
                own_receive,
                own_send,
                populate,
                populate_settle,
                populate_soon,
                read_record,
                release_word,
                resolve,
                scan_records,
                set_bit,
                show_file,
                spin_above,
                split_records,
                store_u32,
                store_u64,
                swap_if_u32,
                swap_if_u64,
                take_bits,
                take_word,
                turn_is_over,
                wait_word,
                wake_waiters,
                wake_word,
                write_record,
            )
        except ImportError as error:
            PURE = True
            warnings.warn(
                f"filechannel runs on its pure-Python twin, about ten times slower: the C core is not there ({error}). "
                "Install a C compiler and reinstall, or set FILECHANNEL_PURE=1 if this is meant.",
                RuntimeWarning,
                stacklevel=2,
            )
    if PURE:
        from .checksum import crc32c
        from .clock import begin_turn, turn_is_over
        from .columns import Columns
        from .cores import AckCore, ReceiveCore, SendCore, own_receive, own_send
        from .forking import close_in_child, keep_in_child
        from .map import Map
        from .memory import can_store, populate, populate_settle, populate_soon, show_file
        from .mount import link_count, mount_id, named_inode
        from .mutex import Guard, Mutex, ensured, holds_mutex, resolve
        from .reader import Reader
        from .records import find_record, join_records, read_record, scan_records, split_records, write_record
        from .ring import move_on
        from .rows import RowEncoder
        from .send_path import SendPath
        from .waiting import release_word, set_bit, spin_above, take_bits, take_word, wait_word, wake_waiters, wake_word
        from .words import add_u64, fence, load_u32, load_u64, store_u32, store_u64, swap_if_u32, swap_if_u64
        from .writer import Writer

__all__ = [
    "NOTHING",
    "PURE",
    "AckCore",
    "Columns",
    "Guard",
    "Map",
    "Mutex",
    "Nothing",
    "Reader",
    "ReceiveCore",
    "RowEncoder",
    "SendCore",
    "SendPath",
    "Writer",
    "add_u64",
    "begin_turn",
    "can_store",
    "close_in_child",
    "crc32c",
    "ensured",
    "fence",
    "find_record",
    "holds_mutex",
    "join_records",
    "keep_in_child",
    "link_count",
    "load_u32",
    "load_u64",
    "mount_id",
    "move_on",
    "named_inode",
    "own_receive",
    "own_send",
    "populate",
    "populate_settle",
    "populate_soon",
    "read_record",
    "release_word",
    "resolve",
    "scan_records",
    "set_bit",
    "show_file",
    "spin_above",
    "split_records",
    "store_u32",
    "store_u64",
    "swap_if_u32",
    "swap_if_u64",
    "take_bits",
    "take_word",
    "turn_is_over",
    "wait_word",
    "wake_waiters",
    "wake_word",
    "write_record",
]
