// What callbacks hand kernels to.
#pragma once

#include <memory>
#include <vector>

#include "kernel_run.h"

struct OrtkitKernels {
  ortkit::provider::Ep* ep;
  std::vector<ortkit::provider::NodeShape> shapes;
  std::vector<std::unique_ptr<ortkit::provider::NodeKernel>> made;  // as many
};
