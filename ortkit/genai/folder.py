"""A folder of onnxruntime-genai: its configuration, and the models that it names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortkit.errors import ModelError, UserError

CONFIG = "genai_config.json"
_FILE, _OPTIONS, _LIBRARY = "filename", "session_options", "custom_ops_library"
_PROVIDERS = "provider_options"
_THREADS = "intra_op_num_threads"
#: The most threads that onnxruntime-genai gives a session by itself.
_MOST_THREADS = 16


@dataclass(frozen=True)
class Section:
    """A part of the configuration that names a model."""

    keys: tuple[str | int, ...]
    """Keys that lead to it, such as `("model", "decoder")`."""
    filename: str
    """The model's file, relative to the folder."""
    library: str = ""
    """The library of custom operators that its sessions register; empty if they do not."""

    @property
    def name(self) -> str:
        """Return what it is called in messages, such as `decoder`."""
        return ".".join(str(key) for key in self.keys[1:]) or self.filename


@dataclass(frozen=True)
class GenaiFolder:
    """A folder that onnxruntime-genai loads; read, never changed.

    Args:
        path: The folder.
        config: `genai_config.json`.
        sections: Its models, in the order of the configuration; no file is there twice.
    """

    path: Path
    config: Mapping[str, Any]
    sections: tuple[Section, ...]

    def model(self, section: Section) -> Path:
        """Return a model's file."""
        return self.path / section.filename

    @property
    def loads_native_code(self) -> bool:
        """Whether onnxruntime-genai may load a library that the configuration names.

        Options of providers count: some of them are paths of libraries.
        """
        waiting: list[object] = [self.config]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                if part.get(_LIBRARY) or part.get(_PROVIDERS):
                    return True
                waiting += part.values()
            elif isinstance(part, list):
                waiting += part
        return False

    @property
    def decoder(self) -> Section | None:
        """The language model itself, if it is one file."""
        return next((each for each in self.sections if each.keys == ("model", "decoder")), None)

    @property
    def decoder_threads(self) -> int:
        """Threads of the decoder in onnxruntime-genai: half the processors unless a number is set.

        0: ONNX Runtime decides.
        """
        decoder = self.config["model"].get("decoder")
        options = decoder.get(_OPTIONS) if isinstance(decoder, dict) else None
        option = options.get(_THREADS) if isinstance(options, dict) else None
        if isinstance(option, int) and option >= 0:
            return option
        return min(max((os.cpu_count() or 1) // 2, 1), _MOST_THREADS)

    @property
    def writes_caches_in_place(self) -> bool:
        """Whether onnxruntime-genai gives caches room for all tokens of a sequence at once.

        It does where the configuration says so, without beam search (0.18, src/generators.cpp).
        """
        search = self.config.get("search")
        option = search if isinstance(search, dict) else {}
        return option.get("past_present_share_buffer") is True and option.get("num_beams", 1) == 1

    @property
    def context(self) -> int | None:
        """The most tokens of a sequence; None: the configuration does not say."""
        option = self.config["model"].get("context_length")
        return option if isinstance(option, int) and option > 0 else None


@dataclass(frozen=True)
class Change:
    """What the sessions of a section get.

    Args:
        library: The library's file name, in the folder; empty: none.
        options: Other entries of `session_options`; those that the user set are kept.
    """

    library: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def is_genai_folder(path: Path) -> bool:
    """Say whether a path is a folder with a configuration of onnxruntime-genai."""
    return path.is_dir() and (path / CONFIG).is_file()


def read_folder(path: Path) -> GenaiFolder:
    """Read a folder's configuration, and check that its models are there.

    Raises:
        UserError: The folder has no configuration, or one that names a file outside of it.
        ModelError: The configuration is damaged, or a model is missing.
    """
    where = path / CONFIG
    if not is_genai_folder(path):
        raise UserError(
            f"is a folder without {CONFIG}" if path.is_dir() else "is no folder",
            where=str(path),
            fix="name an ONNX file, or a folder of genai or Optimum",
        )
    try:
        config = json.loads(
            where.read_text("utf-8"),
            object_pairs_hook=_without_doubles,
            parse_constant=_refuse_constant,
        )
        models = config.get("model") if isinstance(config, dict) else None
        named = [*_sections(models, ("model",))]
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot be read: {error}", where=str(where)) from error
    except RecursionError:
        raise ModelError("has too many levels", where=str(where)) from None
    if not isinstance(models, dict):
        raise ModelError("has no 'model' with the models in it", where=str(where))
    decoder = models.get("decoder")
    if isinstance(decoder, dict) and decoder.get("shared_initializers"):
        raise ModelError(
            "weights that several models share ('shared_initializers') are not supported",
            where=str(where),
        )
    found: dict[str, Section] = {}
    for each in named:
        found.setdefault(each.filename, each)
    sections = tuple(found.values())
    if not sections:
        raise ModelError("names no model", where=str(where))
    for section in sections:
        _check_file(path, section, where)
    return GenaiFolder(path, config, sections)


def changed_config(folder: GenaiFolder, changes: Mapping[str, Change]) -> dict[str, Any]:
    """Return the configuration with session options for models that were optimized.

    Sections that share the decoder's options get options of their own.

    Args:
        folder: What was read.
        changes: By a model's file name.
    """
    config: dict[str, Any] = json.loads(json.dumps(folder.config))
    decoder = config["model"].get("decoder")
    common = dict(decoder.get(_OPTIONS) or {}) if isinstance(decoder, dict) else {}
    common.pop(_LIBRARY, None)
    for section in _sections(config["model"], ("model",)):
        change = changes.get(section.filename)
        if change is None:
            continue
        part: Any = config
        for key in section.keys:
            part = part[key]
        options = {**change.options, **(part.get(_OPTIONS) or common)}
        options.pop(_LIBRARY, None)
        part[_OPTIONS] = {**options, **({_LIBRARY: change.library} if change.library else {})}
    return config


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of JSON; a key that is there twice means one thing here, another in genai.

    Raises:
        ValueError: There is one.
    """
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)!r} is there twice")
    return made


def _refuse_constant(name: str) -> None:
    """Refuse what Python reads as a number and JSON has no word for.

    Raises:
        ValueError: Always.
    """
    raise ValueError(f"{name} is no number of JSON")


def _sections(part: object, keys: tuple[str | int, ...]) -> Iterator[Section]:
    """Find all that name a model's file, stages of pipelines included."""
    if isinstance(part, dict):
        filename = part.get(_FILE)
        options = part.get(_OPTIONS)
        if not isinstance(options, dict | None):
            raise ValueError(f"{_OPTIONS!r} is no object")
        if isinstance(filename, str) and filename:
            library = options.get(_LIBRARY) if isinstance(options, dict) else None
            yield Section(keys, filename, library if isinstance(library, str) else "")
        for key, inner in part.items():
            yield from _sections(inner, (*keys, key))
    elif isinstance(part, list):
        for index, inner in enumerate(part):
            yield from _sections(inner, (*keys, index))


def _check_file(path: Path, section: Section, where: Path) -> None:
    for name in filter(None, (section.filename, section.library)):
        given = Path(name)
        if given.is_absolute() or ".." in given.parts or "\0" in name:
            raise UserError(
                f"{section.name} names a file outside of the folder: {name}", where=str(where)
            )
    if path.resolve() not in (path / section.filename).resolve().parents:
        raise UserError(
            f"{section.name} names a link out of the folder: {section.filename}",
            where=str(where),
            fix="put the file itself there",
        )
    if not (path / section.filename).is_file():
        raise ModelError(
            f"{section.name} names {section.filename}, which is not there", where=str(where)
        )
