"""Translation, text and labels from a trained model; its scores, figures and exports."""

import utils  # noqa: F401  (hides the start-up lines of TensorFlow, which is imported later)
