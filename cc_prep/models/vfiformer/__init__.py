"""VFIformer, an interpolator: its network, flow, transformer and attention."""
