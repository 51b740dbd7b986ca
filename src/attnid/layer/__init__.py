"""One attention layer: its description, forward pass, gauge, counts, metrics, rebalancing and
canonical form.
"""
