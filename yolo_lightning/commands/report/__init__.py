"""What a run folder tells about a run, as one HTML file; `report` calls it. Reads files only.

In this order::

    contents    what is known, as data            problems      what is damaged, collected while the rest is read
    read        reads it from the run folder      evaluations   its validation and its test
    metrics     the curves of metrics.csv         detections    the matched detections of an evaluation
    configuration   as text, without secrets      svg           a figure as text that takes the page's colours
    curves, score_charts       the figures        sections, score_sections      pieces of HTML
    page        puts all into template.html
"""
