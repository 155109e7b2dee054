"""Segment files: plain and compressed, their index, the catalog of all of them, and the free list of recycled files.

Imports `system` and `control`. Start with `segment`, then `catalog`.
"""
