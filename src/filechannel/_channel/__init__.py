"""The typed objects."""
