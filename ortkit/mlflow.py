"""`ortkit.mlflow.log_model`: an optimized model, with its kernels, in the registry of MLflow."""

from ortkit.integrations.mlflow import OrtkitModel as OrtkitModel
from ortkit.integrations.mlflow import log_model as log_model
