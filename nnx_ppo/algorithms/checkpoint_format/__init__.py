"""How checkpoints lie on disk: tensors in safetensors files, everything else in JSON, no code."""
