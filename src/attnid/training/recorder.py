"""What is measured along a training run."""

import time

import torch

from ..layer.metrics import metrics_of_products, step_products, trace
from .settings import learning_rate_at
from .trainer import evaluate, summary, window_losses


class Recorder:
    """What is measured along a run: the head metrics, gradients and step lengths of a step now and
    then, and the validation loss.

    Metrics named joint_... are those of weights with their biases as one more column.
    drift_predicted is what the gradients say that a plain SGD step adds to the joint P_Q - P_K:
    eta^2 ||g_Q g_Q^T - g_K g_K^T||_F. windows are the losses of the last evaluation, where that is
    of all windows.
    """

    def __init__(self, case, preset, corpus, settings, origin):
        self.case, self.preset, self.corpus, self.settings = case, preset, corpus, settings
        self.step, self.heads, self.validation = [], {}, {"step": [], "loss": [], "error": []}
        self.windows = []
        self.origins, self.seconds, self.clock = [origin], 0.0, time.monotonic()

    def before_step(self, step, model):
        if self._measures(step):
            self.before = self._factors(model)

    def on_step(self, step, loss, model, optimizer):
        if self._measures(step):
            self.step.append(step)
            for name, value in self._metrics(step, model).items():
                self.heads.setdefault(name, []).append(value.tolist())
        done = step + 1
        if self.case.move is not None and done % self.preset.move_every == 0:
            self.case.move(model, optimizer)
        if done % self.preset.evaluate_every == 0 or done == self.settings.steps:
            loss, error = self._judged(model)
            for name, value in {"step": done, "loss": loss, "error": error}.items():
                self.validation[name].append(value)
        now = time.monotonic()
        self.seconds, self.clock = self.seconds + now - self.clock, now

    def _judged(self, model):
        tokens, context = self.preset.judged(self.corpus.val), self.preset.context
        if self.preset.half is None:
            return evaluate(model, tokens, batches=10, context=context)
        windows = window_losses(model, tokens, context=context)
        self.windows = windows.tolist()
        return summary(windows)

    def _measures(self, step):
        never = None in (self.case.observe, self.preset.measure_every)
        return not never and step % self.preset.measure_every == 0

    def _factors(self, model, gradient=False):
        # W_Q, W_K (layers, H, D, E), and b_Q, b_K as columns (layers, H, D, 1)
        weights = self.case.observe(model, "weight", gradient=gradient)
        biases = self.case.observe(model, "bias", gradient=gradient)
        return [*(W.contiguous() for W in weights), *(b.unsqueeze(-1) for b in biases)]

    def _metrics(self, step, model):
        W_Q, W_K, b_Q, b_K = map(step_products, self.before, self._factors(model))
        g_Q, g_K, g_b_Q, g_b_K = (g @ g.mT for g in self._factors(model, gradient=True))
        plain, joint = metrics_of_products(W_Q, W_K), metrics_of_products(W_Q + b_Q, W_K + b_K)
        unbalanced = torch.linalg.matrix_norm(g_Q + g_b_Q - g_K - g_b_K)
        length = lambda square: trace(square).sqrt()
        return {
            **plain,
            **{f"joint_{name}": joint[name] for name in ("rho", "beta", "drift")},
            "drift_predicted": learning_rate_at(step, self.settings) ** 2 * unbalanced,
            "step_length": length(W_Q[2] + W_K[2]),
            "gradient_W_Q": length(g_Q),
            "gradient_W_K": length(g_K),
            "gradient_b_Q": length(g_b_Q),
            "gradient_b_K": length(g_b_K),
        }

    @property
    def provenance(self):
        """Where the run comes from, its seconds of all sittings, and `earlier`, the provenance of
        sittings under other circumstances.
        """
        *earlier, last = self.origins
        return last | {"seconds": round(self.seconds, 1), "earlier": earlier}

    def state_dict(self):
        kept = ("step", "heads", "validation", "origins", "seconds")
        return {name: getattr(self, name) for name in kept}

    def load_state_dict(self, state):
        here = self.origins
        vars(self).update(state)
        if self.origins[-1:] != here:
            self.origins = self.origins + here
