"""Shared memory: atomic words, futexes, mutexes, maps that can be closed while in use, and `statx`.

Imports the modules of `_format` itself. Start with `atomics`.
"""
