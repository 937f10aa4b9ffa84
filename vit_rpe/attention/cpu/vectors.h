// Vectors of a CPU, for loops that are written out, and an exponential that compilers turn into them.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace vit_rpe {

// As many bytes as a CPU multiplies at once, or twice as many.
#ifdef __AVX512F__
constexpr int64_t kVectorBytes = 64;
#else
constexpr int64_t kVectorBytes = 32;
#endif

template <typename scalar, int64_t bytes = kVectorBytes>
struct Vector {
  typedef scalar type __attribute__((vector_size(bytes), aligned(sizeof(scalar)), may_alias));
  static constexpr int64_t width = bytes / sizeof(scalar);
};

template <typename scalar, int64_t bytes = kVectorBytes>
inline typename Vector<scalar, bytes>::type& vector_at(scalar* x) {
  return *reinterpret_cast<typename Vector<scalar, bytes>::type*>(x);
}

template <typename scalar, int64_t bytes = kVectorBytes>
inline const typename Vector<scalar, bytes>::type& vector_at(const scalar* x) {
  return *reinterpret_cast<const typename Vector<scalar, bytes>::type*>(x);
}

// exp(x) for x that is not positive, or barely: a polynomial, to two units in the last place. What
// float32 could hold only with fewer digits is 0, as exp(-inf).
inline float exponential(float x) {
  constexpr float kLeast = -87.0f, kLog2 = 1.44269504f, kHigh = 0.693359375f, kLow = -2.12194440e-4f;
  const float inside = x < kLeast ? kLeast : x;
  const float power = std::nearbyint(inside * kLog2);
  const float rest = (inside - power * kHigh) - power * kLow;
  float sum = 1.9875691500e-4f;
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * rest * rest + rest + 1.0f;
  const int32_t bits = (static_cast<int32_t>(power) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return x < kLeast ? 0.0f : sum * scale;
}

inline double exponential(double x) { return std::exp(x); }

}  // namespace vit_rpe
