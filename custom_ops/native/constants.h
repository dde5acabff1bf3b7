// Copies in huge pages of weights that kernels read from memory in each run.
#pragma once

#include <cstddef>

namespace ortkit {

struct Copy;

// A copy of memory, the same for all who ask for it while its bytes are the same. Null
// where none would help: the memory is no file's, the system has no huge pages, or there is no memory.
// The pages of the file leave this process.
const Copy* HoldCopy(const void* source, size_t bytes);
char* MemoryOf(const Copy* copy);
void ReleaseCopy(const Copy* copy);

}  // namespace ortkit
