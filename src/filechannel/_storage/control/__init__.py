"""The control page and what the processes of a channel share through it: slots, locks, wake FIFOs.

Imports `system`. Start with `control_page`: it has the shared words, and composes the parts with a state of their own
(`control_file`, `control_identity`, `control_reserve`, `checkpoints`, `running_flushes`). Then read `joining`.
"""
