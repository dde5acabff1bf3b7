// A small libcuda.so.1 for machines without a GPU: devices, contexts and modules that only count, and
// "kernels" that are functions of the test. Built by test_cuda_shim.py, found through LD_LIBRARY_PATH;
// a test reaches what is below by dlsym, as the shim does.
//
// The text of an image is "<cubin|ptx> <architecture>[a] <entry>"; a cubin with an "a" runs on that
// architecture only, as Triton's for 9.0 and later; one with an "x" is newer than the driver, as is
// PTX whose entry is "newer".
#pragma once

#include <cstddef>
#include <cstdint>

namespace fake_cuda {

struct Launch {
  const char* entry;
  uint32_t blocks[3];
  uint32_t threads;
  uint32_t shared_bytes;
  void* stream;
  void** parameters;
  bool is_early;  // may begin while the launch before ends

  template <class T>
  T Get(int index) const { return *static_cast<T*>(parameters[index]); }
};

using Body = void(const Launch&);

// What a map of a tensor holds; arrays begin with the innermost dim.
struct Map {
  void* address;
  uint64_t dims[5], strides[4];
  uint32_t box[5];
  uint8_t type, rank, swizzle;
};
static_assert(sizeof(Map) <= 128);

struct Counts {
  int contexts;   // held
  int modules;    // loaded
  int loads;      // ever
  int depth;      // contexts on this thread's stack
  int mistakes;   // calls in another context than they should be
};

struct Control {
  // Devices in order, as {architecture, bytes of shared memory}; forgets all else but the bodies.
  void (*SetDevices)(const int32_t (*devices)[2], int32_t count);
  void (*Define)(const char* entry, Body* body);
  // The `count`-th call that can fail returns `code`; -1: none.
  void (*FailAt)(int count, int32_t code);
  const char* (*Failed)();  // the call that did, or null
  Counts (*Count)();
  // The text of the image that was loaded last.
  const char* (*LastImage)();
  // The context current on this thread, as the number of its device; -1: none.
  int (*Current)();
  void (*MakeCurrent)(int device);
  // All streams are captured into a new graph from now on, or no longer.
  void (*Capture)(bool is_captured);
  // Something else than a launch is captured.
  void (*CaptureOther)();
  // From now on every call says that the driver has ended.
  void (*End)();
};

}  // namespace fake_cuda
