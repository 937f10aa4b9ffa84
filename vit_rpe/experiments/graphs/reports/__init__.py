"""Reports of the lines of each table: tables beside the paper's figures, and pictures."""
