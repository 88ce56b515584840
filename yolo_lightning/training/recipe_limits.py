"""Limits of the numbers of `Recipe`, which itself needs torch for the type of an optimizer class."""

RECIPE_LIMITS = {
    "lr0": "> 0",
    **dict.fromkeys(("lrf", "momentum", "warmup_momentum"), ">= 0, <= 1"),
    **dict.fromkeys(("weight_decay", "warmup_epochs", "warmup_bias_lr", "clip_norm"), ">= 0"),
    "nominal_batch": ">= 1",
    "multi_scale": ">= 0, < 1",
    "statistics_batches": ">= 0",
}
"""Limits of options `model.recipe.*` by name, as `settings_group` reads them."""
