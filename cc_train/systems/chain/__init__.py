"""A captioner that also says where: regions, a caption of them, and rounds that refine both."""
