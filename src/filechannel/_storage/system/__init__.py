"""Every call to the operating system: files, kernel locks, maps, boot and machine ids.

Imports `_format` and nothing else of storage. Start with `os_calls`: tests replace its class `Files` to make any call
fail. `confined_paths` resolves paths for it, and `missing_blocks` finds the parts of a file without disk space.
"""
