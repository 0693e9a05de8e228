/* What the stand-ins for cuBLASLt and hipBLASLt share: descriptors, layouts, and the product that both describe,
 * computed on host memory element by element. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { F32 = 0, F16 = 2, I8 = 3, I32 = 10, BF16 = 14, E4M3 = 28, E5M2 = 29, E4M3_FNUZ = 1000, E5M2_FNUZ = 1001 };

typedef struct { int32_t type; uint64_t rows, cols; int64_t ld; } Layout;
typedef struct {
  int32_t compute, scale_type, transa, transb, bias_type, mode_a, mode_b;
  uint32_t epilogue;
  const void *bias, *scale_a, *scale_b;
  int8_t fast;
} Desc;

static int copy(void *to, size_t size, const void *from, size_t given) {
  if (size != given || !from) return INVALID;
  memcpy(to, from, size);
  return OK;
}
static double element(const void *at, int type, int64_t i) {
  if (type == F32) return ((const float *)at)[i];
  if (type == I8) return ((const int8_t *)at)[i];
  if (type == I32) return ((const int32_t *)at)[i];
  if (type == F16) return (double)((const _Float16 *)at)[i];
  if (type == BF16) {
    uint32_t bits = (uint32_t)((const uint16_t *)at)[i] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
  }
  int fnuz = type >= E4M3_FNUZ, mantissa = type == E4M3 || type == E4M3_FNUZ ? 3 : 2;
  int bias = (mantissa == 3 ? 7 : 15) + fnuz;
  uint8_t bits = ((const uint8_t *)at)[i];
  int exponent = (bits & 0x7f) >> mantissa, fraction = bits & ((1 << mantissa) - 1);
  double scale = exponent ? ldexp(1.0, exponent - bias) : ldexp(1.0, 1 - bias);
  double value = scale * ((exponent ? 1.0 : 0.0) + (double)fraction / (1 << mantissa));
  return bits & 0x80 ? -value : value;
}
static void put(void *at, int type, int64_t i, double value) {
  if (type == F32) ((float *)at)[i] = (float)value;
  else if (type == I32) ((int32_t *)at)[i] = (int32_t)value;
  else if (type == F16) ((_Float16 *)at)[i] = (_Float16)value;
  else {
    float rounded = (float)value;
    uint32_t bits;
    memcpy(&bits, &rounded, 4);
    ((uint16_t *)at)[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
}
/* Of row `i` of op(A), or column `i` of op(B), at `k`. */
static double scale(const void *at, int mode, int64_t i, int64_t k, int64_t rows, int64_t depth) {
  const float *scales = at;
  int64_t blocks = (depth + 127) / 128;
  if (!scales) return 1.0;
  if (mode == 0) return scales[0];
  if (mode == 3) return scales[i];
  if (mode == 4) return scales[i + k / 128 * rows];
  return scales[k / 128 + i / 128 * blocks];
}


/* D of this product; `transposed` is the library's word for it. */
static void product(const Desc *d, int transposed, const void *a, const Layout *la, const void *b, const Layout *lb,
                    void *out, const Layout *ld) {
  int turned_a = d->transa == transposed, turned_b = d->transb == transposed;
  int64_t rows = ld->rows, cols = ld->cols, depth = turned_a ? la->rows : la->cols;
  for (int64_t j = 0; j < cols; j++)
    for (int64_t i = 0; i < rows; i++) {
      double sum = 0.0;
      for (int64_t k = 0; k < depth; k++)
        sum += element(a, la->type, turned_a ? k + i * la->ld : i + k * la->ld) *
               scale(d->scale_a, d->mode_a, i, k, rows, depth) *
               element(b, lb->type, turned_b ? j + k * lb->ld : k + j * lb->ld) *
               scale(d->scale_b, d->mode_b, j, k, cols, depth);
      if (d->epilogue & 4) sum += element(d->bias, d->bias_type, i);
      if ((d->epilogue & 2) && sum < 0.0) sum = 0.0;
      put(out, ld->type, i + j * ld->ld, sum);
    }
}
