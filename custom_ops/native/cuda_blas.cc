#include "cuda_blas.h"

#include <dlfcn.h>
#include <link.h>

#include <climits>
#include <cstring>

namespace ortkit::cuda {
namespace {

// cublasGemmEx: matrices lie in columns there, so it gets y^T = w x^T.
using Gemm = int32_t(void* handle, int32_t transposed_a, int32_t transposed_b, int32_t m, int32_t n, int32_t k,
                     const void* alpha, const void* a, int32_t a_type, int32_t lda, const void* b, int32_t b_type,
                     int32_t ldb, const void* beta, void* c, int32_t c_type, int32_t ldc, int32_t compute,
                     int32_t algorithm);

constexpr int32_t kVersion = 1, kBlasHandle = 10002;
constexpr int32_t kPlain = 0, kTransposed = 1;
constexpr int32_t kSumsInFloat = 68, kAnyAlgorithm = -1;
constexpr char kProvider[] = "/libonnxruntime_providers_cuda";

// Keeps the path of ONNX Runtime's provider. It is not opened here: another thread that opens a library
// would wait for the lock of this walk, with the one that is needed for that.
int KeepProvider(dl_phdr_info* info, size_t, void* path) {
  const char* file = strrchr(info->dlpi_name, '/');
  if (file == nullptr || strncmp(file, kProvider, sizeof kProvider - 1) != 0) return 0;
  if (strlen(info->dlpi_name) >= PATH_MAX) return 0;
  strcpy(static_cast<char*>(path), info->dlpi_name);
  return 1;
}

// The function of the release that the provider is linked with, whose handle a run has. Others may be
// loaded beside it, such as PyTorch's, and do not take that handle.
Gemm* FindGemm() {
  char path[PATH_MAX];
  if (dl_iterate_phdr(KeepProvider, path) == 0) return nullptr;
  void* provider = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  return provider == nullptr ? nullptr : reinterpret_cast<Gemm*>(dlsym(provider, "cublasGemmEx"));
}

// CUDA's names of ONNX's float16 and bfloat16; -1 for others.
int32_t TypeOf(int32_t element_type) { return element_type == 10 ? 2 : element_type == 16 ? 14 : -1; }

void* HandleOf(const Op& op, const ort::KernelContext* context) {
  void* handle = nullptr;
  ort::Status* status = ort::GetResource(op.api)(context, kVersion, kBlasHandle, &handle);
  if (status == nullptr) return handle;
  ort::ReleaseStatus(op.api)(status);
  return nullptr;
}

}  // namespace

bool MultiplyByLibrary(const Op& op, const ort::KernelContext* context, const OrtkitProduct& product, const Run& run,
                       void* const* scratch) {
  static Gemm* const gemm = FindGemm();
  const int64_t rows = SizeOf(product.rows, run.symbols);
  const int32_t type = TypeOf(run.spec->tensors[product.x < 0 ? 0 : product.x].element_type);
  if (gemm == nullptr || type < 0 || rows <= 0 || rows > INT32_MAX) return false;
  void* handle = HandleOf(op, context);
  if (handle == nullptr) return false;
  const float one = 1.0f, zero = 0.0f;
  const void* const x = product.x < 0 ? scratch[-1 - product.x] : run.data[product.x];
  const void* const weight = product.weight < 0 ? scratch[-1 - product.weight] : run.data[product.weight];
  void* const y = product.y < 0 ? scratch[-1 - product.y] : run.data[product.y];
  return gemm(handle, kTransposed, kPlain, product.columns, static_cast<int32_t>(rows), product.depth, &one,
              weight, type, product.depth, x, type, product.depth, &zero, y, type, product.columns, kSumsInFloat, kAnyAlgorithm) == 0;
}

}  // namespace ortkit::cuda
