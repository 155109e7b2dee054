"""The schema of a message type: what the manifest keeps instead of the type itself.

``describe`` turns a type into a tree that is plain JSON: complete enough to say whether another type
reads and writes the same messages (``find_difference``), to read and write messages without the user's
classes (``build_type``), and to derive a schema for Spark.
"""

from __future__ import annotations

from .compatibility import Difference, find_difference, reads
from .construction import build_type
from .inspection import describe, describe_opaque, type_name
from .tree import Field, Kind, Node, Record, Scalar, Schema

__all__ = [
    "Difference",
    "Field",
    "Kind",
    "Node",
    "Record",
    "Scalar",
    "Schema",
    "build_type",
    "describe",
    "describe_opaque",
    "find_difference",
    "reads",
    "type_name",
]
