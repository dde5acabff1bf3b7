// Ranges with the names of regions for NVTX tools (Nsight Systems and others), where ORTKIT_NVTX=1 asks
// for them.
#pragma once

namespace ortkit::cuda {

// Looks for a tool, once in the process. Called when kernels are made, as it loads a library.
void StartNvtx();

// A range on this thread while it lives; nothing without a tool.
class NvtxRange {
 public:
  explicit NvtxRange(const char* name);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;

 private:
  bool is_open_;
};

}  // namespace ortkit::cuda
