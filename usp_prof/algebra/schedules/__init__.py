"""In which order does a pipeline act, how long would that take, and how much of it is bubble?"""
