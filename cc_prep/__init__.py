"""Preparation of change-captioning data: from image pairs to sequences, scores and shards.

This is the library: no Ray, no training, no command line. The `cc-prep` command itself is
`pipelines/cli/`, because its jobs run on Ray and only `pipelines` knows Ray.
Importing this package costs nothing: torch and OpenCV are imported where they are used.
"""

__version__ = "0.1.0"
