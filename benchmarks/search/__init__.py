"""What the order of trying costs, and what coarser keys lose."""
