"""Archives of finished segments, on this machine or a remote file system.

Imports `store` and what is below it. Start with `archive`.
"""
