"""Optimization: recipe, optimizers, frozen parts, accumulated gradients, protection against non-finite values."""
