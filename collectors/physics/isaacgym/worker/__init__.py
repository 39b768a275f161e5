"""The program that simulates robots in Isaac Gym, for the Python that has Isaac Gym.

`worker.py` is started as a script by Python 3.6 to 3.8. These files import isaacgym, torch, numpy,
the standard library and each other, and use the language of Python 3.6. Nothing here is imported by
the rest of the package but `protocol`.
"""
