"""Two pictures that do not lie on each other: the one after is moved onto the one before.

Features (SIFT, with a ratio test and MAGSAC) find a motion however large, and ECC (Evangelidis and
Psarakis, PAMI 2008) refines it to a fraction of a pixel; both are OpenCV's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from cc_prep.errors import Reason, RejectedPair
from cc_prep.manifest import Pairs
from cc_prep.media.images import resize

WORKING_SIDE = 640  # px of the longer side of the images of which a motion is found
MAX_FEATURES = 2000  # of an image: motions of all matches are compared with each other
CONTRAST = 0.01  # of features: a quarter of OpenCV's, for smooth pictures
RATIO = 0.8  # of the distances of the best and the second match (Lowe)
REACH = 2.0  # px by which a match may miss
MIN_MATCHES = 12
ECC_BLUR = 3  # px
ROBUST_PASSES = 3
SHARE_ALIKE = 0.95  # of the pixels, by which a motion is refined once it is nearly found
DIFFERENCE_BLUR = 2.0  # px
ECC_STEPS = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 100, 1e-5)
MODELS = {
    "translation": cv2.MOTION_TRANSLATION,
    "affine": cv2.MOTION_AFFINE,
    "homography": cv2.MOTION_HOMOGRAPHY,
}
# Measured: 0.78 or more for photographs of one place, 0.33 or less for photographs of two.
MIN_QUALITY = 0.5
MIN_COVERED = 0.5  # of the image before that the image after must show
SCALES = (0.5, 2.0)  # by which areas may shrink and grow


@dataclass(frozen=True)
class Registration:
    """A motion that was found.

    Attributes:
        model: `translation`, `affine` or `homography`.
        size: Height and width of both images in px.
        matrix: float64 [3, 3], from (x, y, 1) px of the image before to those of the image after.
        quality: The correlation of the two grey images where both are there, up to 1.
        covered: The share of the image before that the image after shows.
    """

    model: str
    size: tuple[int, int]
    matrix: np.ndarray
    quality: float
    covered: float

    @property
    def is_good(self) -> bool:
        """Whether the images look alike, in most of their area, at nearly the same size."""
        area = float(np.linalg.det(self.matrix[:2, :2]))
        of_size = SCALES[0] <= area <= SCALES[1]
        return self.quality >= MIN_QUALITY and self.covered >= MIN_COVERED and of_size

    @property
    def in_words(self) -> str:
        """How good it is, for a message."""
        return f"correlation {self.quality:.2f} in {100 * self.covered:.0f} % of the image"

    def to_json(self) -> dict[str, Any]:
        """As a sample's JSON has it."""
        return {
            "model": self.model,
            "matrix": [[float(f"{x:.9g}") for x in row] for row in self.matrix],
            "quality": round(self.quality, 4),
            "covered": round(self.covered, 4),
        }

    def applied(self, before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both images, uint8 [H, W, 3], on the pixels of the image before.

        Where the image after shows nothing, both have its nearest pixels: what stands half in that
        place would otherwise be half an object in both, and no change.
        """
        height, width = self.size
        moved = cv2.warpPerspective(
            after,
            self.matrix,
            (width, height),
            flags=cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )
        shown = covered(self.matrix, self.size, self.size)
        return np.where(shown[..., None], before, moved), moved

    def applied_to_mask(self, ids: np.ndarray) -> np.ndarray:
        """A mask of the image after, uint8 [H, W] in any size, as that of the image before."""
        height, width = ids.shape
        matrix = _in_size(self.matrix, self.size, (height, width))
        return cv2.warpPerspective(
            ids, matrix, (width, height), flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP
        )


def on_one_grid(
    before: np.ndarray, after: np.ndarray, settings: Pairs
) -> tuple[np.ndarray, np.ndarray, Registration | None]:
    """Both images, uint8 [H, W, 3], as the settings lay them on each other, and by which motion.

    Raises:
        RejectedPair: For images of two sizes that are to be registered and not resized, and where
            no motion is found by which they look alike.
    """
    if settings.resize and before.shape != after.shape:
        smaller = np.minimum(before.shape[:2], after.shape[:2]).tolist()
        before, after = (resize(image, (smaller[0], smaller[1])) for image in (before, after))
    if settings.register == "none":
        return before, after, None
    if before.shape != after.shape:
        sizes = " and ".join(f"{one.shape[1]}×{one.shape[0]}" for one in (before, after))
        raise RejectedPair(Reason.SIZES_DIFFER, f"{sizes} px", "Set pairs.resize (--resize) too")
    found = find(before, after, settings.register)
    if found is None or not found.is_good:
        how = "nothing of one is found in the other" if found is None else found.in_words
        raise RejectedPair(
            Reason.NOT_REGISTERED,
            f"no {settings.register} lays the images on each other: {how}",
            "Give two images of one place, or another pairs.register (--register)",
        )
    return *found.applied(before, after), found


def covered(matrix: np.ndarray, after: tuple[int, int], before: tuple[int, int]) -> np.ndarray:
    """Which pixels of the image before the image after shows, bool [H, W].

    Args:
        after, before: Height and width in px.
    """
    inside = np.full(after, 255, np.uint8)
    inside[[0, -1]] = inside[:, [0, -1]] = 0  # beyond which nothing is interpolated
    height, width = before
    shown = cv2.warpPerspective(
        inside, matrix, (width, height), flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP
    )
    return shown > 0


def find(before: np.ndarray, after: np.ndarray, model: str) -> Registration | None:
    """The motion from one image to another of the same size, uint8 [H, W, 3]; None for none."""
    if np.array_equal(before, after):  # also without anything by which a motion could be found
        return Registration(model, before.shape[:2], np.eye(3), quality=1.0, covered=1.0)
    scale = min(1.0, WORKING_SIDE / max(before.shape[:2]))
    height, width = (max(1, round(side * scale)) for side in before.shape[:2])
    fixed, moving = (
        cv2.cvtColor(resize(image, (height, width)), cv2.COLOR_RGB2GRAY)
        for image in (before, after)
    )
    starts = [np.eye(3)]
    by_features = _by_features(fixed, moving, model)
    if by_features is not None:
        starts.insert(0, by_features)
    found = [one for one in (_refined(fixed, moving, start, model) for start in starts) if one]
    if not found:
        return None
    quality, matrix = max(found, key=lambda one: one[0])
    size = (before.shape[0], before.shape[1])
    matrix = _in_size(matrix, (height, width), size)
    shown = covered(matrix, size, size)
    return Registration(model, size, matrix / matrix[2, 2], quality, float(shown.mean()))


def _in_size(matrix: np.ndarray, old: tuple[int, int], new: tuple[int, int]) -> np.ndarray:
    """A motion between images of one size (height and width) as that between images of another."""
    half = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])  # sizes share corners, not centres
    resized = np.linalg.inv(half) @ np.diag([new[1] / old[1], new[0] / old[0], 1]) @ half
    return resized @ matrix @ np.linalg.inv(resized)


def _by_features(fixed: np.ndarray, moving: np.ndarray, model: str) -> np.ndarray | None:
    """A motion that most matching features agree on, float64 [3, 3]; None where few match."""
    sift = cv2.SIFT.create(nfeatures=MAX_FEATURES, contrastThreshold=CONTRAST)
    (points, described), (others, other_described) = (
        sift.detectAndCompute(image, None) for image in (fixed, moving)
    )
    if described is None or other_described is None or len(other_described) < 2:
        return None
    pairs = cv2.BFMatcher().knnMatch(described, other_described, k=2)
    good = [one for one, second in pairs if one.distance < RATIO * second.distance]
    if len(good) < MIN_MATCHES:
        return None
    source = np.array([points[one.queryIdx].pt for one in good], np.float32)
    target = np.array([others[one.trainIdx].pt for one in good], np.float32)
    if model == "translation":
        # The median of the motions that agree with most others.
        motions = target - source
        agree = (np.abs(motions[:, None] - motions[None]).max(axis=2) < REACH).sum(axis=1)
        best = motions[np.abs(motions - motions[agree.argmax()]).max(axis=1) < REACH]
        if len(best) < MIN_MATCHES:
            return None
        shift = np.eye(3)
        shift[:2, 2] = np.median(best, axis=0)
        return shift
    if model == "affine":
        found, inliers = cv2.estimateAffine2D(
            source, target, method=cv2.USAC_MAGSAC, ransacReprojThreshold=REACH
        )
    else:
        found, inliers = cv2.findHomography(source, target, cv2.USAC_MAGSAC, REACH)
    if found is None or inliers.sum() < MIN_MATCHES:
        return None
    return np.vstack([found, [0, 0, 1]]) if model == "affine" else np.asarray(found)


def _refined(
    fixed: np.ndarray, moving: np.ndarray, matrix: np.ndarray, model: str
) -> tuple[float, np.ndarray] | None:
    """The correlation of a motion that ECC refined, and the motion; None where it finds none.

    After the first pass the pixels that differ most are left out: they are what changed.
    """
    rows = 3 if model == "homography" else 2
    height, width = fixed.shape
    quality, alike = -1.0, None
    for _ in range(1 + ROBUST_PASSES):
        start = (matrix[:rows] / matrix[2, 2]).astype(np.float32)
        try:
            _, warp = cv2.findTransformECC(
                fixed, moving, start, MODELS[model], ECC_STEPS, alike, ECC_BLUR
            )
        except cv2.error:  # the two do not correlate
            break
        matrix = np.vstack([warp, [0, 0, 1]]) if rows == 2 else warp.astype(np.float64)
        moved = cv2.warpPerspective(
            moving, matrix, (width, height), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        )
        shown = covered(matrix, fixed.shape, fixed.shape)
        if not shown.any():
            return None
        quality = cv2.computeECC(fixed, moved, shown.astype(np.uint8))
        differs = np.abs(moved.astype(np.float32) - fixed)
        differs = cv2.GaussianBlur(differs, (0, 0), DIFFERENCE_BLUR)
        same = shown & (differs <= np.quantile(differs[shown], SHARE_ALIKE))
        # ECC takes the mask on the pixels of the image that is moved.
        alike = cv2.warpPerspective(
            same.astype(np.uint8), matrix, (width, height), flags=cv2.INTER_NEAREST
        )
    return None if alike is None else (float(quality), matrix)
