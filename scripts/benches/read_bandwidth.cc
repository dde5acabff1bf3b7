// How many bytes a second threads read from memory: `THREADS PASSES` prints one number a pass.
//
// Each thread reads 256 MiB of its own in huge pages, as four streams of vectors: one stream alone
// is slower, as the processor reads ahead in each.
#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kBytes = std::size_t{256} << 20;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kStreams = 4;
using Vector = std::int32_t __attribute__((vector_size(64)));

const Vector* filled() {
  void* memory = std::aligned_alloc(kHugePage, kBytes);
  if (memory == nullptr) std::exit(1);
  madvise(memory, kBytes, MADV_HUGEPAGE);
  auto* words = static_cast<std::int32_t*>(memory);
  for (std::size_t i = 0; i < kBytes / sizeof *words; ++i) words[i] = static_cast<std::int32_t>(i);
  return static_cast<const Vector*>(memory);
}

std::int32_t read(const Vector* values) {
  constexpr std::size_t part = kBytes / sizeof(Vector) / kStreams;
  Vector sums[kStreams] = {};
  for (std::size_t i = 0; i < part; ++i)
    for (std::size_t s = 0; s < kStreams; ++s) sums[s] += values[s * part + i];
  Vector sum = sums[0] + sums[1] + sums[2] + sums[3];
  return sum[0] + sum[7];
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const std::size_t threads = std::strtoul(arguments[1], nullptr, 10);
  const std::size_t passes = std::strtoul(arguments[2], nullptr, 10);
  std::barrier together(static_cast<std::ptrdiff_t>(threads));
  std::vector<std::vector<double>> starts(threads, std::vector<double>(passes)), ends = starts;
  volatile std::int32_t kept = 0;
  std::vector<std::thread> pool;
  for (std::size_t number = 0; number < threads; ++number)
    pool.emplace_back([&, number] {
      const Vector* values = filled();
      for (std::size_t pass = 0; pass < passes; ++pass) {
        together.arrive_and_wait();
        starts[number][pass] = seconds();
        kept = read(values);
        ends[number][pass] = seconds();
      }
    });
  for (auto& thread : pool) thread.join();
  for (std::size_t pass = 0; pass < passes; ++pass) {
    double first = starts[0][pass], last = ends[0][pass];
    for (std::size_t number = 1; number < threads; ++number) {
      first = std::min(first, starts[number][pass]);
      last = std::max(last, ends[number][pass]);
    }
    std::printf("%.0f\n", static_cast<double>(threads * kBytes) / (last - first));
  }
}
