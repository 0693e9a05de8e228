"""What programs get that call winners."""
