"""Self-supervised pre-training: data, methods, and the parts that methods have in common."""

# Method by name, and its module, so that names are known without importing torch.
METHODS = {"tespec": "tespec.pretraining.tespec"}
