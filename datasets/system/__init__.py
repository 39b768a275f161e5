"""What the machine gives: locks, signs of life of processes, devices, compilers."""
