"""The networks alone: tensors in, tensors out. No files, no images, no Ray."""
