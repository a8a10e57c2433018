"""Augmentation on the device: batches of uint8 (B, H, W, C), each image with its own draw.

All randomness comes from uniform numbers in the arguments, float32 (count, B) in [0, 1). A constant
next to each function says how many it takes.

Used by `data/image_changes.py`, `data/batches.py` and `data/picture_crop.py`. A change of what is
drawn or computed also needs `DRAWS` in `run/spec.py` raised.
"""
