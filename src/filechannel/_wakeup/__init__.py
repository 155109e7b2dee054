"""Wakeups between tasks, threads and processes: waiters, wake pipes, the send queue and the watchdog.

Imports `_storage`, `_runtime` and `_format`. Start with `waiters`.
"""
