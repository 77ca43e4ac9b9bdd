"""Masks of one grid and tokens in a line."""

CLEAR = """
    region text
    region image[height, width] order tile(8, 16)
    text sees text, image: all
    image sees text: all
    image sees image: disc(radius)
"""
IMAGE_FIRST = """
    region image[height, width] order tile(16, 8)
    region text
    image sees image: disc(7)
    all sees text: all
    text sees image: all
"""
VIDEO = """
    region text
    region video[frames, height, width] order tile(4, 4, 8)
    text sees text, video: all
    video sees text: all
    video sees video: window(frames, 2, 2) & window(height, 5, 5) & window(width, 5, 5)
"""
