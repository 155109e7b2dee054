"""The checks of `filechannel doctor`.

Imports `ui`. Start with `channel_checks`.
"""
