"""Appending to the log: locking and capacity (`log`), batches, roll and rollback (`appender`), the offset gap.

Imports `capacity` and the packages below it. Start with `log`.
"""
