"""uPlot 1.6.32, which draws the graphs of page and report: files of its npm package, unchanged, with its licence (MIT)."""
