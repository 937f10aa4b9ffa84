"""Images: bytes to pixels, and pixels to tensors."""
