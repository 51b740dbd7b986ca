"""Configurations and weights that people have: families, architectures, layouts, files, audit and
reduction.
"""
