// Runs an optimized model with its kernel library in C++: the BERT of `python -m models bert`.
//
// usage: deploy MODEL [LIBRARY]    without the library ONNX Runtime's own kernels run
#include <onnxruntime_cxx_api.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <vector>

int main(int count, char** words) try {
  if (count < 2) return std::fprintf(stderr, "usage: deploy MODEL [LIBRARY]\n"), 2;
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "deploy");
  Ort::SessionOptions options;
  if (count > 2) options.RegisterCustomOpsLibrary(words[2]);  // a path: "./model.opt.ops.so"
  Ort::Session session(env, words[1], options);

  const std::array<int64_t, 2> shape{1, 128};
  std::vector<int64_t> ids(128, 7), mask(128, 1);
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  const auto tensor = [&](std::vector<int64_t>& data) {
    return Ort::Value::CreateTensor<int64_t>(memory, data.data(), data.size(), shape.data(), 2);
  };
  std::array<Ort::Value, 2> inputs{tensor(ids), tensor(mask)};
  const std::array<const char*, 2> names{"input_ids", "attention_mask"};
  const std::array<const char*, 1> results{"last_hidden_state"};
  const auto outputs =
      session.Run(Ort::RunOptions{nullptr}, names.data(), inputs.data(), 2, results.data(), 1);

  const float* values = outputs[0].GetTensorData<float>();
  std::printf("%.6f %.6f %.6f\n", values[0], values[1], values[2]);
  return 0;
} catch (const Ort::Exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
