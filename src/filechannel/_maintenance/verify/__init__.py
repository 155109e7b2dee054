"""Checks every byte of a channel without changing one.

Imports `_storage`. Start with `verification`.
"""
