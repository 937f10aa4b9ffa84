"""The training loop: steps, what learns in them, and what can end them early."""
