"""The schema of a message type: what the manifest stores instead of the type itself.

``describe`` turns a type into a tree that is plain JSON. The tree is complete enough to decide whether another type
reads and writes the same messages (``find_difference``), to read and write messages without the user's classes
(``build_type``), and to derive a schema for Spark.
"""

from __future__ import annotations

from .compatibility import Difference, find_difference, reads
from .defaults import MOST_DEFAULT_BYTES, affordable_defaults
from .inspection import describe, describe_opaque, type_name
from .tree import Field, Kind, Node, Record, Scalar, Schema
from .type_builder import build_type

__all__ = [
    "MOST_DEFAULT_BYTES",
    "Difference",
    "Field",
    "Kind",
    "Node",
    "Record",
    "Scalar",
    "Schema",
    "affordable_defaults",
    "build_type",
    "describe",
    "describe_opaque",
    "find_difference",
    "reads",
    "type_name",
]
