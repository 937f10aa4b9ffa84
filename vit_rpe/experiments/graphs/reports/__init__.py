"""What the lines of each table say: tables beside the paper's figures, and pictures."""
