"""What there is to learn, and from whom.

* `learning_problem` is the type of a problem.
* `catalogue` makes the problem that the flags name.
* `problem_options` has its options, made of `image_options`, `text_options` and others.
* `images` divides images among users.
* `text` is for text by user.
* `private_words` counts a vocabulary with noise.
* `prior` holds what was released about the same users before.
"""
