"""Corpora, one run and its resume, experiments, records, and statistics of them."""
