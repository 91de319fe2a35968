"""Settings for the whole suite."""

import os

from hypothesis import HealthCheck, settings

# A busy machine is not a slow formula. Where the suite decides over a change it must not fall to a new example: there
# the examples are the same each time, and new ones are looked for everywhere else.
settings.register_profile(
    "everywhere", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
settings.register_profile("ci", settings.get_profile("everywhere"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "everywhere")
