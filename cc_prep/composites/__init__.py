"""Change pairs composed of photographs and cut-outs of objects, in the layout of CLEVR-Change.

sources.py    backgrounds and cut-outs: which can be used, which are alike, and into which split
scenes.py     what a scene shows before and after, its pixels, its masks, and its camera
sentences.py  the types of change, and sentences that state them
reading.py    such sentences read back: what a caption claims
dataset.py    the folder that is written, resumable and parallel
"""
