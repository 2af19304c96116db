"""The offline jobs on Ray Data, and the `cc-prep` command. The only place that knows Ray."""
