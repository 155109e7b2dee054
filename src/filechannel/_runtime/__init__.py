"""Threads that the whole process shares, timed work, which thread may sleep, and what happens at a fork.

`threads` has the thread pools, `scheduler` calls functions at given times, `fork_registry` resets a forked child,
`thread_wakeup` lets a thread sleep until another one wakes it, `may_sleep` says whether a thread may wait for a lock.
The lowest layer. Start with `scheduler`.
"""
