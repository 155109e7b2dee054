"""Conversion between MessagePack records and columns in the Arrow layout. Only `filechannel.spark` imports it.

The Python modules are the pure implementation of the C files in `_native/arrow`, chosen like the rest of `_format`.
They import `memory` and the modules of `_format` itself. Start with `columns`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import PURE

if TYPE_CHECKING or PURE:
    from .columns import Columns
    from .rows import RowEncoder
else:
    from .._core import Columns, RowEncoder

__all__ = ["Columns", "RowEncoder"]
