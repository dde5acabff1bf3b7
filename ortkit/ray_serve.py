"""`ortkit.ray_serve.application`: an optimized model as an application of Ray Serve."""

from ortkit.integrations.ray_serve import application as application
