"""Durable consumer positions: cursors, groups, their name locks, expiry, listing, and the low watermark.

Imports `segments`, `control` and `system`. Start with `cursors`, then `cursor` and `group_cursor`.
"""
