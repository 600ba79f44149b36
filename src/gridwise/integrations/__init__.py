"""Other libraries' ways to run a model, replaced by exact ones: `pip install 'gridwise[integrations]'`.

monai       an `Inferer` in place of sliding windows
diffusers   `exact_tiling` in place of `enable_tiling`
exact       what they share: whole tensors in and out, by tiles or on a grid; `libraries`: those that must be there
"""
