"""The smallest part of a region that still fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fuzz.batch import Finding, fault_of
from fuzz.feeds import runs
from fuzz.reference import Reference
from fuzz.values import Region, needed, numpy_dtype
from ortkit.kernels.build.cache import KernelCache


def smallest(finding: Finding, cache: KernelCache) -> Finding:
    """Drop outputs and cut off what lies before a value, as long as the rest still fails.

    What is cut off becomes an input, which is fed what the reference had there.
    """
    if finding.run is None:  # it never ran: any inputs will do
        finding = replace(finding, run=runs(finding.region)[0])
    found = finding
    progress = True
    while progress:
        progress = False
        for candidate in _smaller(found):
            assert candidate.run is not None
            fault = fault_of(candidate.region, candidate.run, cache)
            if fault:
                found, progress = replace(candidate, fault=fault), True
                break
    return found


def _smaller(finding: Finding) -> Iterator[Finding]:
    region, run = finding.region, finding.run
    assert run is not None
    if len(region.outputs) > 1:
        for output in region.outputs:
            yield _trimmed(finding, replace(region, outputs=(output,)))
    inner = [n for n in region.nodes if n.op_type != "Constant" and len(n.output) == 1]
    for node in inner:  # the first value that is wrong
        value = region.values[node.output[0]]
        if value not in region.outputs:
            yield _trimmed(finding, replace(region, outputs=(value,)))
    with np.errstate(all="ignore"):
        exact = Reference(region).run(run.feeds)
    last = {output.name for output in region.outputs}
    for node in reversed(region.nodes):
        names = [name for name in node.output if name in exact and name not in last]
        if node.op_type == "Constant" or len(names) < len(node.output):
            continue
        cut = tuple(region.values[name] for name in names)
        rest = tuple(item for item in region.nodes if item is not node)
        with np.errstate(over="ignore", invalid="ignore"):
            fed = {one.name: exact[one.name].astype(numpy_dtype(one.dtype)) for one in cut}
        smaller = replace(region, inputs=(*region.inputs, *cut), nodes=rest)
        feeds = {**run.feeds, **fed}
        yield _trimmed(replace(finding, run=replace(run, feeds=feeds)), smaller)


def _trimmed(finding: Finding, region: Region) -> Finding:
    nodes, names = needed(region.nodes, [output.name for output in region.outputs])
    inputs = tuple(value for value in region.inputs if value.name in names)
    return replace(finding, region=replace(region, nodes=nodes, inputs=inputs))
