"""Other libraries' ways to run a model, replaced by exact ones: `pip install 'gridwise[integrations]'`.

monai       an `Inferer` in place of sliding windows
diffusers   `exact_tiling` in place of `enable_tiling`
lightning   `GridStrategy` in place of "ddp"
accelerate  `GridAccelerator` for loops that are written with an Accelerator
transformers  `GridTrainer` in place of `Trainer`
trainers    what adapters of trainers share
exact       what the others share: whole tensors in and out, by tiles or on a grid; `libraries`: those that must be there
"""
