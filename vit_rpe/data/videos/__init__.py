"""Videos: bytes to frames, frames to clips, clips to tensors."""
