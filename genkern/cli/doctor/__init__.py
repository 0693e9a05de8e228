"""`genkern doctor`: examines this machine in processes with time limits, and says what to do about what it finds."""
