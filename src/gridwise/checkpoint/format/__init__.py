"""The format on disk, and how it is read when it may be damaged or hostile.

contents                        what is at a path: a checkpoint, or safetensors files written by any program
manifest, manifest_parser       the JSON file that says what a checkpoint holds
values                          plain values and keys as JSON
data_file, chunks               safetensors files, in chunks with a checksum each
safetensors_headers             safetensors files of other programs: one file, or shards with an index
open_inside                     open files in a checkpoint's folder without following links
"""
