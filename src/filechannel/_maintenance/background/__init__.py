"""What the maintenance thread does: retention and compression. `reclaim_now` does it when a user asks for it.

Imports `_storage`. Start with `maintenance_thread`.
"""
