"""Other libraries' faces over accelmetrics' readings, for programs that know those libraries alone.

``answers`` says what NVML would answer of a snapshot's devices, ``feed`` writes that for a program that is started. ``startup/`` is what
the program itself runs; it gives NVIDIA's Python binding a library that answers from the feed.
"""
