"""Colours (RGB, 0-255) in pictures; the legs' are from the palette of Okabe & Ito (2008)."""

Colour = tuple[int, int, int]

RIGHT_LEGS: Colour = (213, 94, 0)
LEFT_LEGS: Colour = (0, 114, 178)
TRUNK: Colour = (70, 83, 99)
FEET: Colour = (24, 28, 34)
BARRIER: Colour = (230, 159, 0)
GHOST: Colour = (120, 170, 90)
SKY: Colour = (246, 248, 250)
