"""Flushing data and positions to disk: the flusher, the group commit, failed flushes, and flushes at intervals.

Imports `log`, `consumers` and `producers`. Start with `flusher`, then `group_commit` and `failed_flush`.
"""
