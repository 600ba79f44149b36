"""From files to a state on any grid.

loading                         `load` and `verify`
load_plan, restore, optimisers   which stored boxes go into which memory
renaming                        a checkpoint under other names; the report of what was left out
chunk_reads                     which chunks hold them
reader, open_file, read_ahead   check every byte, then put it into place; open files; read-ahead from the disk
shared_memory_targets           tensors of the state that share memory
available_memory                a check before any is allocated
"""
