"""Maintenance of stored data that needs no channel object: in the background, or while no process has it open."""
