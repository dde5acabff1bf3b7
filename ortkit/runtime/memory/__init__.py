"""What sessions take of memory: arenas, the process, the device; by node and by shape."""

from ortkit.runtime.memory.report import MemoryReport, report_of

__all__ = ["MemoryReport", "report_of"]
