"""Properties of pure functions: a slow example says something about the machine, not about them."""

from hypothesis import settings

settings.register_profile("policy", deadline=None)
settings.load_profile("policy")
