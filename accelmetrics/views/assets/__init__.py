"""uPlot 1.6.32, which draws the graphs of the page and of reports: unchanged files of its npm package, with its MIT licence."""
