"""The Isaac Gym worker, run as a script by Python 3.6 to 3.8.

Files here use the language of Python 3.6 and import isaacgym, torch, numpy, the standard library
and each other. The rest of the package imports `protocol` only.
"""
