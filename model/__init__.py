"""The Transformer in plain TensorFlow: variables on `tf.Module`, masks and seeds as arguments."""
