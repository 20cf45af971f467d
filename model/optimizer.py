"""The learning rate and the optimizer of section 5.3."""

import tensorflow as tf


def learning_rate(step, d_model, warmup_steps, scale=1.0):
    """Section 5.3, eq. 3: rises linearly for `warmup_steps`, then falls as 1 / √step.

    step: 1 for the first update; an integer, or a scalar tensor of any kind.
    """
    step = tf.cast(step, tf.float32)
    return scale * d_model**-0.5 * tf.minimum(step**-0.5, step * warmup_steps**-1.5)


class Adam(tf.Module):
    """Kingma & Ba 2015, with the constants of section 5.3. For gradient g at step t:

        m ← β₁ m + (1 − β₁) g
        v ← β₂ v + (1 − β₂) g²
        variable ← variable − rate · √(1 − β₂ᵗ) / (1 − β₁ᵗ) · m / (√v + ε)

    As in Keras; algorithm 1 of Adam's paper would have ε · √(1 − β₂ᵗ) for ε (its section 2).
    """

    def __init__(self, variables, beta_1=0.9, beta_2=0.98, epsilon=1e-9):
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.m = [tf.Variable(tf.zeros_like(variable)) for variable in variables]
        self.v = [tf.Variable(tf.zeros_like(variable)) for variable in variables]
        # Updates made. Each replica counts; that they count alike, TensorFlow wants to be told.
        once = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.step = tf.Variable(0, dtype=tf.int64, aggregation=once)

    def apply(self, gradients, variables, rate):
        """One update, in place, of the variables that `__init__` was given; rate: a scalar."""
        self.step.assign_add(1)
        step = tf.cast(self.step, tf.float32)
        for variable, m, v, gradient in zip(variables, self.m, self.v, gradients, strict=True):
            # The three lines above in one pass over memory: a third of their time one by one.
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle, m=m.handle, v=v.handle,
                beta1_power=self.beta_1**step, beta2_power=self.beta_2**step,
                lr=rate, beta1=self.beta_1, beta2=self.beta_2, epsilon=self.epsilon,
                grad=tf.convert_to_tensor(gradient),
            )  # fmt: skip
