"""`ortkit.olive.OrtkitOptimization`, as a package configuration of Olive names it."""

from ortkit.integrations.olive import OrtkitOptimization as OrtkitOptimization
from ortkit.integrations.olive import package_config as package_config
from ortkit.integrations.olive import write_package_config as write_package_config
