"""What pictures and the legends of pages both have to know; brings no torch, as pictures do."""

# RGB of the verdicts 1, 2, 3 on a pixel of a mask.
VERDICTS = {"right": (0, 190, 70), "wrong": (225, 30, 30), "missed": (60, 110, 255)}
WORD_SIDE = 72  # px of the picture of a word
