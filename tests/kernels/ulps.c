// The largest error of a float32 function over a range of bit patterns, against double precision.
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { kChunk = 4096 };

typedef int32_t (*Kernel)(const float* x, float* y, int64_t n);
typedef double (*Reference)(double);

double ref_gelu(double x) { return 0.5 * x * erfc(-x * 0.70710678118654752440); }
double ref_sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
double ref_silu(double x) { return x < 0 ? x * exp(x) / (1 + exp(x)) : x / (1 + exp(-x)); }
double ref_gelu_tanh(double x) {
  double inner = 1.59576912160573071176 * (x + 0.044715 * x * x * x);
  return inner < 0 ? x * exp(inner) / (1 + exp(inner)) : x / (1 + exp(-inner));
}
double ref_softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }

double ref_mish(double x) { return x * tanh(ref_softplus(x)); }

#define LIBM(F) \
  double ref_##F(double x) { return F(x); }
LIBM(exp) LIBM(exp2) LIBM(expm1) LIBM(log) LIBM(erf) LIBM(tanh) LIBM(sin) LIBM(cos) LIBM(tan) LIBM(asin)
LIBM(acos) LIBM(atan) LIBM(sinh) LIBM(cosh) LIBM(asinh) LIBM(acosh) LIBM(atanh)

static double spacing(double exact) {
  int exponent;
  frexp(exact, &exponent);
  return ldexp(1.0, exponent < -125 ? -149 : exponent - 24);
}

// Distance in ulp, infinite where one is NaN or infinite and the other is not.
static double distance(float found, double exact) {
  float rounded = (float)exact;
  if (isnan(rounded)) return isnan(found) ? 0 : INFINITY;
  if (isinf(rounded)) return found == rounded ? 0 : INFINITY;
  if (isnan(found) || isinf(found)) return INFINITY;
  if (exact == 0 && found == 0) return !signbit(exact) == !signbit(found) ? 0 : INFINITY;
  return fabs((double)found - exact) / spacing(exact);
}

// Bit patterns first, first + step, ... below last, where low <= x <= high or, if both, x is NaN.
// Writes the largest error in ulp, or absolutely, and where it is.
void largest_error(Kernel kernel, Reference reference, uint64_t first, uint64_t last,
                   uint64_t step, float low, float high, int32_t is_absolute, int32_t with_nan,
                   double* worst, float* where) {
  static _Thread_local float x[kChunk], y[kChunk];
  *worst = 0;
  *where = 0;
  while (first < last) {
    int64_t n = 0;
    for (; n < kChunk && first < last; first += step) {
      uint32_t bits = (uint32_t)first;
      memcpy(&x[n], &bits, sizeof bits);
      if ((x[n] >= low && x[n] <= high) || (with_nan && isnan(x[n]))) n++;
    }
    kernel(x, y, n);
    for (int64_t i = 0; i < n; i++) {
      double exact = reference((double)x[i]);
      double error = is_absolute ? fabs((double)y[i] - exact) : distance(y[i], exact);
      if (!(error <= *worst)) *worst = error, *where = x[i];
    }
  }
}
