"""The manifests that come with the package, found by name."""
