"""Whether what is deployed computes what was trained: answers, layers, sizes and speed."""
