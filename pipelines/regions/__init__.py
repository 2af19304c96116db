"""The jobs on changed regions: found masks, their entities, and the use of both in `build`."""
