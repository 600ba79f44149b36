"""Conversion from and to other formats, and the interface of torchdistX.

formats                        `convert` and `read`: which formats there are, and how each is recognised
portable                       the contents of any format, on their way to another
safetensors_file, huggingface  one file; a folder of shards with an index, also straight from workers (`export`)
pickled                        files that are read by unpickling
torch_distributed              folders of torch.distributed.checkpoint, and optimiser states as torch writes them
torchdistx                     the names that torchdistX's users know
"""
