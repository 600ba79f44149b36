"""From a state to files.

saving, background   save now, or while training goes on; staging: the copy that the latter writes from
write_shares         which worker writes what
manifest_assembly    what each worker has written, and the manifest of all of it
folder               how a save starts, commits and cleans up
"""
