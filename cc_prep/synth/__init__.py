"""A CLEVR-Change-style data set made on this machine: scenes, changes, captions, images, truth.

scenes.py    objects and their positions, changes, and every moment in between
captions.py  sentences that single out what changed
render.py    a moment to an image and to a map of object numbers (Mitsuba 3)
dataset.py   the official on-disk layout, resumable and parallel
"""
