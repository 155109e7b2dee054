"""The threads that wait for the kernel, shared by every channel of the process and started when first needed."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

_THREADS = 4


@lru_cache(maxsize=1)
def background_threads() -> ThreadPoolExecutor:
    """Return the threads."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="filechannel")


os.register_at_fork(after_in_child=background_threads.cache_clear)  # a forked child has none of them
