"""What there is to learn, and from whom.

`learning_problem`: what a task is. `catalogue`: the one that the flags name: `images`, or `text` by
user (`text_options`), whose words may be counted with noise (`private_words`). `prior`: what was
released about the same users before.
"""
