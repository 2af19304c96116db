"""Scores of rendered pairs, which say more than words: whether captions are right, and masks agree.

They are added to an evaluation where its pairs hold facts; nothing else in `cc_train.evaluation`
knows the grammar of rendered captions.
"""
