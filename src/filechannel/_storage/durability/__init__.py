"""Flushing data and positions to disk: the flusher with its group commit, interval flushes, and cursor flushes.

Imports `log`, `consumers` and `producers`. Start with `flusher`.
"""
