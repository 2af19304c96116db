"""What the commands of `cc-train` do that train, evaluate and caption."""
