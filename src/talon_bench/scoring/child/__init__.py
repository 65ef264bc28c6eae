"""The guarded child process in which model-written code runs; started as a script of its folder, standard library alone."""
