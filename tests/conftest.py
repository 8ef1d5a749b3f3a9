"""How do property tests run here? Without deadlines: a busy machine is no bug."""

from hypothesis import settings

settings.register_profile("project", deadline=None)
settings.load_profile("project")
