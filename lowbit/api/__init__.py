"""The functions behind `import lowbit`: one module per question, loaded on first use."""
