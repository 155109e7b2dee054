"""The log position that one or more receivers share.

`subscription` is the same for all receivers: lifetime, reading and waiting. With acknowledgement, `outstanding` tracks
the deliveries on top of it, and `group_member` the claims and leases of a group. `transaction_position` stores the
position of a transaction in its output channel.

Imports `status`, `lifecycle` and `schema`. Start with `subscription`.
"""
