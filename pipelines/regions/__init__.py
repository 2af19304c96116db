"""The jobs on changed places: found masks and their entities, and what `build` takes of both."""
