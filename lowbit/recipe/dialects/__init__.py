"""Other projects' recipes: `paddleslim` and `low_precision`; `lowbit.recipe.load` chooses one."""
