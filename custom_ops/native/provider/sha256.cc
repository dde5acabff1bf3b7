#include "sha256.h"

#include <cstdint>
#include <cstring>

namespace ortkit::provider {
namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t Turn(uint32_t word, int count) { return (word >> count) | (word << (32 - count)); }

uint32_t ReadWord(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

void AddBlock(const uint8_t* block, uint32_t* state) {
  uint32_t words[64];
  for (int i = 0; i < 16; ++i) words[i] = ReadWord(block + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = Turn(words[i - 15], 7) ^ Turn(words[i - 15], 18) ^ (words[i - 15] >> 3);
    const uint32_t b = Turn(words[i - 2], 17) ^ Turn(words[i - 2], 19) ^ (words[i - 2] >> 10);
    words[i] = words[i - 16] + a + words[i - 7] + b;
  }
  uint32_t s[8];
  memcpy(s, state, sizeof s);
  for (int i = 0; i < 64; ++i) {
    const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    const uint32_t first = s[7] + (Turn(s[4], 6) ^ Turn(s[4], 11) ^ Turn(s[4], 25)) + choice +
                           kRound[i] + words[i];
    const uint32_t second = (Turn(s[0], 2) ^ Turn(s[0], 13) ^ Turn(s[0], 22)) + majority;
    memmove(s + 1, s, 7 * sizeof *s);
    s[4] += first;
    s[0] = first + second;
  }
  for (int i = 0; i < 8; ++i) state[i] += s[i];
}

}  // namespace

std::string Sha256(const void* data, size_t size) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const auto* bytes = static_cast<const uint8_t*>(data);
  size_t done = 0;
  for (; size - done >= 64; done += 64) AddBlock(bytes + done, state);
  uint8_t rest[128] = {};
  const size_t left = size - done;
  if (left > 0) memcpy(rest, bytes + done, left);
  rest[left] = 0x80;
  const size_t end = left < 56 ? 64 : 128;
  const uint64_t bits = uint64_t{size} * 8;
  for (int i = 0; i < 8; ++i) rest[end - 1 - i] = static_cast<uint8_t>(bits >> (8 * i));
  for (size_t i = 0; i < end; i += 64) AddBlock(rest + i, state);
  std::string text;
  for (const uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[(word >> shift) & 15];
  }
  return text;
}

}  // namespace ortkit::provider
