"""The acts of `filechannel demo`. Each one tests a promise on this machine and reports whether it was kept."""
