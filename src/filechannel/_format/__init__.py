"""The byte layout of all files, and the hot paths that read and write it. No files, no event loops.

There are two implementations with the same names and signatures: the C core, and the Python modules beside it, which
are its readable reference. `FILECHANNEL_PURE=1` forces the pure-Python implementation; an install without a compiler
uses it too.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from .sentinel import NOTHING, Nothing

if TYPE_CHECKING:
    PURE: bool

    from .append.send_path import SendPath
    from .append.writer import Writer
    from .checksum import crc32c
    from .clock import begin_slice, slice_is_over
    from .fast_methods import AckCore, ReceiveCore, SendCore, own_receive, own_send
    from .memory.atomics import add_u64, fence, load_u32, load_u64, store_u32, store_u64, swap_if_u32, swap_if_u64
    from .memory.closable_map import Map
    from .memory.fork_descriptors import close_in_child, keep_in_child
    from .memory.futex import (
        release_word,
        set_bit,
        spin_above,
        take_bits,
        take_word,
        wait_word,
        wake_waiters,
        wake_word,
    )
    from .memory.mutex import Guard, Mutex, ensured, holds_mutex, resolve
    from .memory.prefault import can_store, populate, populate_soon, populate_wait, show_file
    from .memory.statx import link_count, mount_id, named_inode
    from .read.group_ring import advance_position
    from .read.reader import Reader
    from .read.store_position import write_cursor_slot
    from .records import (
        find_record,
        join_records,
        read_record,
        scan_records,
        skip_records,
        split_records,
        write_record,
    )
else:
    PURE = bool(os.environ.get("FILECHANNEL_PURE"))
    if not PURE:
        try:
            from ._core import (
                AckCore,
                Guard,
                Map,
                Mutex,
                Reader,
                ReceiveCore,
                SendCore,
                SendPath,
                Writer,
                add_u64,
                advance_position,
                begin_slice,
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
                named_inode,
                own_receive,
                own_send,
                populate,
                populate_soon,
                populate_wait,
                read_record,
                release_word,
                resolve,
                scan_records,
                set_bit,
                show_file,
                skip_records,
                slice_is_over,
                spin_above,
                split_records,
                store_u32,
                store_u64,
                swap_if_u32,
                swap_if_u64,
                take_bits,
                take_word,
                wait_word,
                wake_waiters,
                wake_word,
                write_cursor_slot,
                write_record,
            )
        except ImportError as error:
            PURE = True
            warnings.warn(
                "filechannel runs on its pure-Python implementation, about ten times slower: "
                f"the C core is missing ({error}). "
                "Install a C compiler and reinstall, or set FILECHANNEL_PURE=1 if this is intended.",
                RuntimeWarning,
                stacklevel=2,
            )
    if PURE:
        from .append.send_path import SendPath
        from .append.writer import Writer
        from .checksum import crc32c
        from .clock import begin_slice, slice_is_over
        from .fast_methods import AckCore, ReceiveCore, SendCore, own_receive, own_send
        from .memory.atomics import add_u64, fence, load_u32, load_u64, store_u32, store_u64, swap_if_u32, swap_if_u64
        from .memory.closable_map import Map
        from .memory.fork_descriptors import close_in_child, keep_in_child
        from .memory.futex import (
            release_word,
            set_bit,
            spin_above,
            take_bits,
            take_word,
            wait_word,
            wake_waiters,
            wake_word,
        )
        from .memory.mutex import Guard, Mutex, ensured, holds_mutex, resolve
        from .memory.prefault import can_store, populate, populate_soon, populate_wait, show_file
        from .memory.statx import link_count, mount_id, named_inode
        from .read.group_ring import advance_position
        from .read.reader import Reader
        from .read.store_position import write_cursor_slot
        from .records import (
            find_record,
            join_records,
            read_record,
            scan_records,
            skip_records,
            split_records,
            write_record,
        )

__all__ = [
    "NOTHING",
    "PURE",
    "AckCore",
    "Guard",
    "Map",
    "Mutex",
    "Nothing",
    "Reader",
    "ReceiveCore",
    "SendCore",
    "SendPath",
    "Writer",
    "add_u64",
    "advance_position",
    "begin_slice",
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
    "named_inode",
    "own_receive",
    "own_send",
    "populate",
    "populate_soon",
    "populate_wait",
    "read_record",
    "release_word",
    "resolve",
    "scan_records",
    "set_bit",
    "show_file",
    "skip_records",
    "slice_is_over",
    "spin_above",
    "split_records",
    "store_u32",
    "store_u64",
    "swap_if_u32",
    "swap_if_u64",
    "take_bits",
    "take_word",
    "wait_word",
    "wake_waiters",
    "wake_word",
    "write_cursor_slot",
    "write_record",
]
