"""The colors of all pictures: dark is large, as ink on paper."""

WEIGHTS = "magma_r"  # a color map of matplotlib, for weights of masks and attention
ABSENT = "#d9d9d9"  # what is exactly 0: no weight, rather than a small one
MARK = "#00a5cf"  # the query that a picture is about
ANCHORS = (  # of WEIGHTS at equal distances, for pages, which have no matplotlib
    *("#fcfdbf", "#feca8d", "#fd9668", "#f1605d", "#cd4071"),
    *("#9e2f7f", "#721f81", "#440f76", "#180f3d", "#000004"),
)
SERIES = ("#3b6fb6", "#c4622d", "#2a8c82", "#8a5aa8", "#8c6d1f", "#b0406f", "#5b6b78")  # of runs
