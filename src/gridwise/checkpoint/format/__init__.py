"""What lies on the disk, and how it is read when it may be damaged or hostile.

contents                        what stands at a path: a checkpoint, or safetensors files of any program
manifest, manifest_parser       the one JSON file that says what a checkpoint holds
values                          plain values and keys as JSON
data_file, chunks               safetensors files, in chunks with a checksum each
safetensors_headers             safetensors files of other programs, one or shards with an index
open_inside                     files of a checkpoint's folder, links not followed
"""
