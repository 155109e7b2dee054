"""Segment files: plain and compressed, their index, their names, the catalog of all of them, and the free list.

Imports `system` and `control`. Start with `segment`, then `catalog`.
"""
