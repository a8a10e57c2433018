"""Augmentation on the device: batches of uint8 (B, H, W, C), each image with its own draw.

All that is random comes from uniform numbers in the arguments, float32 (count, B) in [0, 1); how
many each takes stands beside it.
"""
