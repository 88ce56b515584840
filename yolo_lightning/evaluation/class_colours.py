"""Colours of the classes, the same in all pictures, curves and tables."""

CLASS_COLOURS = ("#2ba6de", "#e8a90c", "#f0383b", "#6cab3f", "#b067ea", "#f07d1a", "#2f9c7e", "#f25597")
"""Colours of the first classes, visible on gray frames and on light and dark pages; further classes repeat them."""

LINE_STYLES = ("-", "--", ":")


def class_colour(label: int) -> str:
    """Return the colour `#rrggbb` of a class, by its label from 0."""
    return CLASS_COLOURS[label % len(CLASS_COLOURS)]


def class_line_style(label: int) -> str:
    """Return the matplotlib line style of a class; it separates the curves of classes with equal colours."""
    return LINE_STYLES[label // len(CLASS_COLOURS) % len(LINE_STYLES)]
