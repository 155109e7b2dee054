"""Every call to the operating system: files, kernel locks, maps, boot and machine ids.

Imports `_format` and nothing else of storage. Start with `files`: tests replace its class to make any call fail.
"""
