"""The results of `statistics()` and `consumers()`.

Imports `_maintenance` and `_storage`. Start with `statistics`.
"""
