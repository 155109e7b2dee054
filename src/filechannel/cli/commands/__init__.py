"""One module for each command; `filechannel.cli.app` lists them.

Imports every other package of `cli`.
"""
