"""Channels, senders, receivers, services and transactions without waiting, shared by event loops and threads.

They decide, and never wait. Whether a message of a service is retried, dead-lettered or skipped is decided in
`retry_or_dead_letter`.

Imports `subscription`, `status`, `lifecycle` and `schema`. Start with `channel`.
"""
