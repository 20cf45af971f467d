"""Speed benchmarks, and a twin of the model built from Keras layers."""
