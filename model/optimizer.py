"""The learning rate and the optimizer: Vaswani et al. 2017, section 5.3."""

from collections.abc import Sequence

import tensorflow as tf

from config import Config


def learning_rate(step: int | tf.Tensor, config: Config) -> tf.Tensor:
    """Rise linearly for `warmup_steps`, then decay as 1 / √step: section 5.3, eq. 3.

    step: 1 for the first update; a number or a tensor of any shape and type. A schedule that ends
    can use `config.total_steps`, the number of updates of the whole training. A resumed run keeps
    it, even if it trains longer: to continue after the end of a schedule, use --init-from.
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

    Another optimizer is a subclass that replaces `update`, created in `train.make_optimizer`.
    variables: those to update, by name, as `trainable_variables` returns them.
    """

    def __init__(
        self,
        variables: dict[str, tf.Variable],
        beta_1: float = 0.9,
        beta_2: float = 0.98,
        epsilon: float = 1e-9,
    ):
        # Tensors, or the graph of the train step would have constants for each variable.
        self.beta_1, self.beta_2, self.epsilon = map(tf.constant, (beta_1, beta_2, epsilon))
        self.no_power = tf.constant(0.0)
        self.m = [tf.Variable(tf.zeros_like(variable)) for variable in variables.values()]
        self.v = [tf.Variable(tf.zeros_like(variable)) for variable in variables.values()]
        # Each replica counts its updates; the counts are equal.
        once = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.step = tf.Variable(0, dtype=tf.int64, aggregation=once)
        self.first_nonfinite_step = tf.Variable(0, dtype=tf.int64, aggregation=once)  # 0: none

    def apply(
        self, gradients: Sequence[tf.Tensor], variables: dict[str, tf.Variable], rate: tf.Tensor
    ) -> None:
        """Update the variables, those of `__init__`, in place. rate: a scalar."""
        self.step.assign_add(1)
        step = tf.cast(self.step, tf.float32)
        correction = tf.sqrt(1.0 - self.beta_2**step) / (1.0 - self.beta_1**step)
        parts = zip(variables.items(), gradients, self.m, self.v, strict=True)
        for (name, variable), gradient, m, v in parts:
            self.update(name, variable, gradient, m, v, rate, correction)

    def update(
        self,
        name: str,
        variable: tf.Variable,
        gradient: tf.Tensor,
        m: tf.Variable,
        v: tf.Variable,
        rate: tf.Tensor,
        correction: tf.Tensor,
    ) -> None:
        """Update one variable, and its m and v, in place.

        name: such as `encoder/layers/0/attention/query/kernel`. correction: √(1 − β₂ᵗ) / (1 − β₁ᵗ).
        """
        # The three equations in one operation, in about half the time. It multiplies `lr` by
        # √(1 − beta2_power) / (1 − beta1_power), which is 1 here: `lr` is already corrected.
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=m.handle,
            v=v.handle,
            beta1_power=self.no_power,
            beta2_power=self.no_power,
            lr=rate * correction,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )

    def record_nonfinite(self, value: tf.Tensor) -> None:
        """Keep the first step at which `value`, a scalar, was not finite."""
        first = ~tf.math.is_finite(value) & (self.first_nonfinite_step == 0)
        step = tf.where(first, self.step, self.first_nonfinite_step)
        self.first_nonfinite_step.assign(step)
