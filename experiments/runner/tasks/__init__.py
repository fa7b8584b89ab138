"""What there is to learn, and from whom: images or text by user, and what was released about them before."""
