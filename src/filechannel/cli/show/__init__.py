"""The acts of `filechannel demo`: each shows one promise on this machine, and says whether it was kept."""
