"""Files and memory maps: how a channel is stored and kept consistent. Knows no event loops, types or codecs.

Start with `writable_store`, which composes the parts of a channel, and `store_events`, by which they notify each other.
"""
