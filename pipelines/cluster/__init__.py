"""What Ray has: free resources of each node, the workers they hold, GPUs that are broken."""
