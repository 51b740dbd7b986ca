"""Every plotting function of the book, in one style. Each takes data, draws, and returns the
figure.
"""

from .beyond import (
    atlas,
    changes,
    freed_rotations,
    gates,
    gauges,
    heads_and_loss,
    idle_by_cause,
    lines_between,
    nearly_idle,
    trained_heads,
)
from .identification import (
    bias_gradients,
    canonical_form,
    cliff,
    coordinates_that_fail,
    damage_by_condition,
    grouped_and_rotary,
    hyperbolas_and_counts,
    no_single_head,
    rotary_idle_directions,
    segments,
    share_and_error,
    straight_and_curved,
    stripes,
    weights_and_pattern,
    wider_heads,
)
from .style import COLOURS, LINES, STYLE, new_figure
from .training import (
    bias_gradients_in_training,
    four_cases,
    imbalance_paths,
    intervals,
    rate_sweep,
    rebalancing_orbit,
    rho_and_biases,
    sawtooth,
    twins,
)
