"""The learning rate and the optimizer: Vaswani et al. 2017, section 5.3."""

from collections.abc import Sequence

import tensorflow as tf

from config import Config


def learning_rate(step: int | tf.Tensor, config: Config) -> tf.Tensor:
    """Rise linearly for `warmup_steps`, then decay as 1 / √step: section 5.3, eq. 3.

    step: 1 for the first update; a number or a tensor of any shape and type.
    """
    step = tf.cast(step, tf.float32)
    schedule = tf.minimum(step**-0.5, step * config.warmup_steps**-1.5)
    return config.learning_rate_scale * config.d_model**-0.5 * schedule


class Adam(tf.Module):
    """Adam, with the constants of Vaswani et al. 2017, section 5.3. For gradient g at step t:

        m ← β₁ m + (1 − β₁) g
        v ← β₂ v + (1 − β₂) g²
        variable ← variable − rate · √(1 − β₂ᵗ) / (1 − β₁ᵗ) · m / (√v + ε)

    As in Keras. Kingma & Ba 2015 have ε · √(1 − β₂ᵗ) instead of ε (algorithm 1; see section 2).
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        beta_1: float = 0.9,
        beta_2: float = 0.98,
        epsilon: float = 1e-9,
    ):
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.m = [tf.Variable(tf.zeros_like(variable)) for variable in variables]
        self.v = [tf.Variable(tf.zeros_like(variable)) for variable in variables]
        # Each replica counts its updates; the counts are equal.
        once = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.step = tf.Variable(0, dtype=tf.int64, aggregation=once)
        self.first_nonfinite_step = tf.Variable(0, dtype=tf.int64, aggregation=once)  # 0: none

    def apply(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable], rate: tf.Tensor
    ) -> None:
        """Update the variables in place, in the order of `__init__`. rate: a scalar."""
        self.step.assign_add(1)
        step = tf.cast(self.step, tf.float32)
        # Constants of the graph, created once for all variables.
        beta_1, beta_2, epsilon = map(tf.constant, (self.beta_1, self.beta_2, self.epsilon))
        beta_1_power, beta_2_power = beta_1**step, beta_2**step
        for variable, m, v, gradient in zip(variables, self.m, self.v, gradients, strict=True):
            # The three equations in one pass over memory.
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=beta_1_power,
                beta2_power=beta_2_power,
                lr=rate,
                beta1=beta_1,
                beta2=beta_2,
                epsilon=epsilon,
                grad=gradient,
            )

    def record_nonfinite(self, value: tf.Tensor) -> None:
        """Keep the first step at which `value`, a scalar, was not finite."""
        first = ~tf.math.is_finite(value) & (self.first_nonfinite_step == 0)
        step = tf.where(first, self.step, self.first_nonfinite_step)
        self.first_nonfinite_step.assign(step)
