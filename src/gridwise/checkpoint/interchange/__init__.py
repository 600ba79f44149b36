"""Other formats and other names.

formats                        convert and read: which formats there are, and how each is recognised
portable                       what any of them holds, on its way to another
safetensors_file, huggingface  one file; a folder of shards with an index, also straight from workers (`export`)
pickled                        what is read by unpickling
torch_distributed              folders of torch.distributed.checkpoint, and states of optimisers as torch writes them
torchdistx                     the names that its users know
"""
