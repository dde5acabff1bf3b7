"""A runtime of MLServer, which speaks the Open Inference Protocol over HTTP and gRPC.

Source: MLServer 1.7, mlserver/model.py and mlserver/codecs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from ortkit.errors import UserError
from ortkit.integrations.batching import joinable
from ortkit.integrations.packages import require
from ortkit.integrations.served import served_session
from ortkit.runtime.session import Session
from ortkit.runtime.specs import TensorSpec

_EXTRA = "mlserver"
_model: Any = require("mlserver", _EXTRA)
_types: Any = require("mlserver.types", _EXTRA)
_errors: Any = require("mlserver.errors", _EXTRA)
_utils: Any = require("mlserver.utils", _EXTRA)
_codecs: Any = require("mlserver.codecs", _EXTRA)
_log: Any = require("mlserver.logging", _EXTRA).logger
#: Where `parameters.uri` of model-settings.json names a folder.
_FILES = ("model.opt.onnx", "model.onnx")
#: What codecs and numpy raise where data do not fit their type or shape.
_NOT_DECODED = (ValueError, TypeError, OverflowError)
#: Data types of the Open Inference Protocol by numpy's.
_DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16",
    "float32": "FP32", "float64": "FP64", "object": "BYTES",
}  # fmt: skip


class OrtkitRuntime(_model.MLModel):  # type: ignore[misc]
    """Serve a model with its kernels: `"implementation": "ortkit.mlserver.OrtkitRuntime"`.

    `parameters.extra` of model-settings.json may have `target`, `kernels` and `threads`.
    """

    _session: Session | None = None

    async def load(self) -> bool:
        """Open the session on a thread, and say which inputs and outputs it has."""
        uri = await _utils.get_model_uri(self._settings, wellknown_filenames=list(_FILES))
        settings = (self._settings.parameters and self._settings.parameters.extra) or {}
        self._session = await asyncio.to_thread(served_session, Path(uri), settings)
        for note in self._session.notes:
            _log.warning("%s: %s", self.name, note)
        if self._settings.max_batch_size > 1:
            refused = await asyncio.to_thread(joinable, Path(uri))
            if refused is not None:
                _log.warning(
                    "%s: requests are batched, as max_batch_size asks, without a proof that rows "
                    "are independent: %s", self.name, refused.reason,
                )  # fmt: skip
        self._specs = {spec.name: spec for spec in self._session.inputs}
        if not self._settings.inputs:
            self.inputs = [_metadata(spec) for spec in self._session.inputs]
        if not self._settings.outputs:
            self.outputs = [_metadata(spec) for spec in self._session.outputs]
        return True

    async def predict(self, payload: Any) -> Any:
        """Run the model on a thread of its own: the server goes on answering meanwhile."""
        assert self._session is not None  # MLServer asks models that are loaded
        try:
            feeds = {item.name: self._array(item) for item in payload.inputs}
            wanted = [output.name for output in payload.outputs or ()] or None
            found = await asyncio.wrap_future(self._session.run_async(feeds, wanted))
        except (UserError, *_NOT_DECODED) as error:
            raise _errors.InferenceError(str(error)) from error
        outputs = [_output(name, value) for name, value in found.items()]
        return _types.InferenceResponse(
            id=payload.id, model_name=self.name, model_version=self.version, outputs=outputs
        )

    async def unload(self) -> bool:
        """Close the session; a model that did not load is unloaded, too."""
        if self._session is not None:
            self._session.close()
        return True

    def _array(self, given: Any) -> Any:
        spec = self._specs.get(given.name)
        if spec is not None and spec.dtype == np.dtype(object):
            texts = self.decode(given, default_codec=_codecs.StringCodec)
            return np.asarray(texts, object).reshape(given.shape)
        return self.decode(given, default_codec=_codecs.NumpyCodec)


def _metadata(spec: TensorSpec) -> Any:
    shape = [size if isinstance(size, int) else -1 for size in spec.shape or ()]
    return _types.MetadataTensor(name=spec.name, datatype=_datatype(spec), shape=shape)


def _datatype(spec: TensorSpec) -> str:
    found = None if spec.dtype is None else _DATATYPES.get(spec.dtype.name)
    if found is None:
        raise UserError(f"the Open Inference Protocol has no {spec.type}", where=repr(spec.name))
    return found


def _output(name: str, value: np.ndarray) -> Any:
    """Return an output; texts are bytes, which MLServer makes texts of over HTTP."""
    data = value.ravel().tolist()
    if value.dtype == np.dtype(object):
        data = [item if isinstance(item, bytes) else str(item).encode() for item in data]
    return _types.ResponseOutput(
        name=name,
        datatype=_DATATYPES[value.dtype.name],
        shape=list(value.shape),
        data=data,
    )
