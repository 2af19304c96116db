"""Images and videos: the one room that decodes and encodes pixels."""
