"""The commands of the tasks beside walking: Gymnasium's, and the CMU humanoid's."""
