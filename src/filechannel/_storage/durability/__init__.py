"""Flushing data and positions to disk: the flusher, the group commit, and flushes of data and cursors at intervals.

Imports `log`, `consumers` and `producers`. Start with `flusher`, then `group_commit`.
"""
