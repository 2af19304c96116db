"""Pages on training runs."""

from cc_train.report.page import write

__all__ = ["write"]
