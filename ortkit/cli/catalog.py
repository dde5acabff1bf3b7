"""The one list of subcommands: name -> (module, one line of help)."""

from __future__ import annotations

from collections.abc import Mapping

COMMANDS: Mapping[str, tuple[str, str]] = {
    "optimize": (
        "ortkit.cli.optimize",
        "rewrite, fuse and verify a model",
    ),
    "inspect": (
        "ortkit.cli.inspect",
        "say what a model consists of and what it costs",
    ),
    "diff": (
        "ortkit.cli.diff",
        "say what was removed, added and changed between two models",
    ),
    "verify": (
        "ortkit.cli.verify",
        "say whether one model computes what another computes",
    ),
    "bisect": (
        "ortkit.cli.bisect",
        "name the rewrites that break a model",
    ),
    "try": (
        "ortkit.cli.attempt",
        "show in a minute what optimizing gives; writes nothing",
    ),
    "memory": (
        "ortkit.cli.memory",
        "say what a model takes of memory, by node, shape and option",
    ),
    "run": (
        "ortkit.cli.run",
        "run a model once and write its outputs",
    ),
    "compare": (
        "ortkit.cli.compare",
        "set variants of a model side by side in time, memory and results",
    ),
    "reduce": (
        "ortkit.cli.reduce",
        "make a model smaller while a check holds",
    ),
    "profile": (
        "ortkit.cli.profile",
        "say where the time of a model's runs goes, and what to do about it",
    ),
    "provider": (
        "ortkit.cli.provider",
        "compile a model for ortkit's execution provider, or test a provider",
    ),
    "bundle": (
        "ortkit.cli.bundle",
        "write what a server needs to serve an optimized model",
    ),
    "passes": (
        "ortkit.cli.passes",
        "list the passes, or describe one",
    ),
    "cache": (
        "ortkit.cli.cache",
        "list or remove the compiled kernels that are kept on disk",
    ),
    "trust": (
        "ortkit.cli.trust",
        "let sessions load kernel libraries that were built elsewhere",
    ),
    "calibrate": (
        "ortkit.cli.calibrate",
        "measure what work costs on this machine, for the choice of kernels",
    ),
    "tune": (
        "ortkit.cli.tune",
        "try kernels of a model on this machine, and keep what is faster",
    ),
    "ops": (
        "ortkit.cli.ops",
        "list, describe, test and compile ops that are defined in Python",
    ),
    "doctor": (
        "ortkit.cli.doctor",
        "say what is installed, what is missing and how to get it",
    ),
    "completion": (
        "ortkit.cli.completion",
        "print a completion script for bash, zsh or fish",
    ),
}

#: What the commands are for: title -> commands, as `ortkit --help` lists them.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "make a model faster": ("optimize", "try", "tune", "calibrate"),
    "look at a model": ("inspect", "diff", "profile", "memory"),
    "run and check": ("run", "compare", "verify", "bisect", "reduce"),
    "deploy": ("bundle",),
    "extend": ("ops", "passes", "provider"),
    "this machine": ("doctor", "cache", "trust", "completion"),
}
#: Old names of commands -> what they are called now.
RENAMED: Mapping[str, tuple[str, ...]] = {"compile-provider": ("provider", "compile")}
