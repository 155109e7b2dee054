"""Both implementations of the format, as namespaces with the same names."""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace

MODULES = {
    "checksum": ("crc32c",),
    "records": (
        *("write_record", "read_record", "scan_records", "skip_records", "find_record"),
        *("join_records", "split_records"),
    ),
    "memory.futex": (
        *("take_word", "release_word", "wait_word", "wake_word", "wake_waiters"),
        *("spin_above", "set_bit", "take_bits"),
    ),
    "memory.fork_descriptors": ("close_in_child", "keep_in_child"),
    "memory.atomics": (
        "load_u32",
        "load_u64",
        "store_u32",
        "store_u64",
        "swap_if_u32",
        "swap_if_u64",
        "add_u64",
        "fence",
    ),
    "clock": ("begin_slice", "slice_is_over"),
    "append.writer": ("Writer",),
    "append.send_path": ("SendPath",),
    "read.store_position": ("write_cursor_slot",),
    "read.group_ring": ("advance_position",),
    "read.reader": ("Reader",),
    "fast_methods": ("SendCore", "ReceiveCore", "AckCore", "own_send", "own_receive"),
    "arrow.columns": ("Columns",),
    "arrow.rows": ("RowEncoder",),
    "memory.statx": ("link_count", "mount_id", "named_inode"),
    "memory.prefault": ("can_store", "populate", "populate_soon", "populate_wait", "show_file"),
}
"""Where the pure implementation has each name; the native core has all of them in `_core`."""
NAMES = tuple(name for names in MODULES.values() for name in names)
FUNCTIONS = tuple(name for name in NAMES if name.islower())
CLASSES = tuple(name for name in NAMES if not name.islower())


def pure_implementation() -> SimpleNamespace:
    """Return the readable reference."""
    names = {
        name: getattr(importlib.import_module(f"filechannel._format.{module}"), name)
        for module, members in MODULES.items()
        for name in members
    }
    return SimpleNamespace(name="pure", **names)


def native_implementation() -> SimpleNamespace:
    """Return the C core; `ImportError` gives the reason if there is none."""
    core = importlib.import_module("filechannel._format._core")
    return SimpleNamespace(name="native", **{name: getattr(core, name) for name in NAMES})


def why_no_native_core() -> str | None:
    """Return the reason to leave the native half out, or None."""
    if os.environ.get("FILECHANNEL_PURE"):
        return "the native core is left out: FILECHANNEL_PURE is set"
    try:
        native_implementation()
    except ImportError as error:
        return f"the native core is left out: the C core is not built ({error})"
    return None
