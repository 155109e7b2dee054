"""Opening and closing a channel: from the arguments of `open_channel` to an open store, and back.

Imports `schema`. Start with `open_spec`.
"""
