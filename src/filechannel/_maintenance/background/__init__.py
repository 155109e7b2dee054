"""What the maintenance thread does: retention and compression. `reclaim_on_request` reclaims when a user asks for it.

Imports `_storage`. Start with `maintenance_thread`.
"""
