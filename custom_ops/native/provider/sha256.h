// SHA-256 (FIPS 180-4): the name of a library is that of its content.
#pragma once

#include <cstddef>
#include <string>

namespace ortkit::provider {

// 64 hex digits.
std::string Sha256(const void* data, size_t size);

}  // namespace ortkit::provider
