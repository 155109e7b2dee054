"""Wakeups between tasks, threads and processes: waiters, wake pipes, the send queue and the watchdog."""
