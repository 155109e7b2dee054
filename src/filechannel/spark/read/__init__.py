"""Reading channels: batch and stream partitions, filters, and the tasks that run on executors.

Imports the modules of `spark` itself. Start with `read_tasks`.
"""
