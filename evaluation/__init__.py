"""Translation with a trained model, its scores, figures and exports."""
