"""Appending to the log: locking and capacity, batches, roll and rollback, the offset gap.

Imports `capacity` and the packages below it. Start with `log`, then `append_and_roll_back`.
"""
