"""What would a configuration need and give that was never run, and which is the best? One question a module."""
