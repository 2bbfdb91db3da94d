"""The dialects of other projects, one file each; `lowbit.recipe.load` chooses, and all become a Recipe."""
