"""`ortkit.mlserver.OrtkitRuntime`, as model-settings.json of MLServer names it."""

from ortkit.integrations.mlserver import OrtkitRuntime as OrtkitRuntime
