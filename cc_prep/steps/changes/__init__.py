"""Changed regions of an image pair, found without the truth: difference → clusters → masks.

Source: DAVIR, equations 2 and 3. What that paper leaves open is set by `manifest.Changes`;
docs/changes.md gives the reasons.
"""

from cc_prep.steps.changes.finding import find

__all__ = ["find"]
