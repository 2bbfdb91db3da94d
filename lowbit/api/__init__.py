"""The functions behind `import lowbit`: one module per function, imported lazily."""
