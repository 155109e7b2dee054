"""The async API: the classes of `base`, with methods that wait. `filechannel.blocking` mirrors it for threads.

Imports `base` and what is below it. Start with `open_channel`.
"""
