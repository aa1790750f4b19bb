"""Imitations of other libraries, which answer from accelmetrics' readings, for programs that only know these libraries.

``feed`` computes NVML's answers for the devices of a snapshot, and writes them into a file for a started program. The program itself runs
``startup/``, which gives NVIDIA's Python binding a library that answers from this file.
"""
