"""`lowbit demo`: its trainings as commands, run side by side, and the table they end with."""
