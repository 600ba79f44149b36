"""Other formats and other names.

formats      safetensors in and out, torch.save and torch.distributed in
torchdistx   the names that its users know
"""
