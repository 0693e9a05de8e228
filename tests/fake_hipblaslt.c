/* A libhipblaslt without a GPU: what genkern calls of it, on host memory.
 *
 * It refuses attributes of another size than hipblaslt.h says, computes what descriptors and layouts describe, and has
 * solutions by index, of which some do not take a product. Its C++ functions stand here by their mangled names; built
 * with -DOLD it has none of them, nor modes of scales, as ROCm 6's.
 */
enum { OK = 0, INVALID = 3, NOT_SUPPORTED = 7 };
enum { OP_N = 111, OP_T = 112, COMPUTE_32F = 2, COMPUTE_32I = 9 };
#include "fake_lt.h"

typedef struct { uint64_t workspace; } Preference;
/* The 24 bytes of an algorithm: rocBLASLt packs its members over data[16]; the index comes first in both. */
typedef struct { int32_t index; uint8_t data[12]; size_t most_workspace; } Algo;
typedef struct { Algo algo; size_t workspace; int state; float waves; int reserved[4]; } Result;
typedef struct { Result *begin, *end, *room; } Vector;
_Static_assert(sizeof(Algo) == 24, "hipblasLtMatmulAlgo_t");
_Static_assert(sizeof(Result) == 56, "hipblasLtMatmulHeuristicResult_t");

/* For tests: what was called how often, and what the last call and the last heuristic were told. */
int fake_matmuls, fake_checks, fake_handles, fake_alive, fake_vectors, fake_asked;
Algo fake_algo;
int fake_supports_nothing;
/* So many solutions there are; those whose index is a multiple of seven take nothing, of eleven need a workspace. */
#define SOLUTIONS 300

int hipblasLtCreate(void **handle) { fake_handles++; *handle = malloc(1); return OK; }
int hipblasLtDestroy(void *handle) { fake_handles--; free(handle); return OK; }
int hipblasLtGetVersion(void *handle, int *version) { *version = 100202; return handle ? OK : 1; }

int hipblasLtMatrixLayoutCreate(Layout **made, int type, uint64_t rows, uint64_t cols, int64_t ld) {
  *made = malloc(sizeof(Layout));
  **made = (Layout){type, rows, cols, ld};
  fake_alive++;
  return OK;
}
int hipblasLtMatrixLayoutDestroy(Layout *layout) { free(layout); fake_alive--; return OK; }
int hipblasLtMatmulDescCreate(Desc **made, int compute, int scale_type) {
  *made = calloc(1, sizeof(Desc));
  **made = (Desc){.compute = compute, .scale_type = scale_type, .transa = OP_N, .transb = OP_N, .epilogue = 1, .bias_type = -1};
  fake_alive++;
  return OK;
}
int hipblasLtMatmulDescDestroy(Desc *desc) { free(desc); fake_alive--; return OK; }
int hipblasLtMatmulDescSetAttribute(Desc *d, int attribute, const void *value, size_t size) {
  switch (attribute) {
    case 0: return copy(&d->transa, 4, value, size);
    case 1: return copy(&d->transb, 4, value, size);
    case 2: return copy(&d->epilogue, 4, value, size);
    case 3: return copy(&d->bias, 8, value, size);
    case 4: return copy(&d->bias_type, 4, value, size);
    case 5: return copy(&d->scale_a, 8, value, size);
    case 6: return copy(&d->scale_b, 8, value, size);
#ifndef OLD
    case 31: return copy(&d->mode_a, 4, value, size);
    case 32: return copy(&d->mode_b, 4, value, size);
#endif
  }
  return INVALID;
}
int hipblasLtMatmulPreferenceCreate(Preference **made) { *made = calloc(1, sizeof(Preference)); fake_alive++; return OK; }
int hipblasLtMatmulPreferenceDestroy(Preference *p) { free(p); fake_alive--; return OK; }
int hipblasLtMatmulPreferenceSetAttribute(Preference *p, int attribute, const void *value, size_t size) {
  return attribute == 1 ? copy(&p->workspace, 8, value, size) : INVALID;
}

static int supported(const Desc *d, const Layout *a, const Layout *b, const Layout *c) {
  int ta = d->transa == OP_T, tb = d->transb == OP_T;
  if ((!ta && d->transa != OP_N) || (!tb && d->transb != OP_N)) return INVALID;
  uint64_t m = ta ? a->cols : a->rows, ka = ta ? a->rows : a->cols;
  uint64_t n = tb ? b->rows : b->cols, kb = tb ? b->cols : b->rows;
  if (ka != kb || m != c->rows || n != c->cols) return INVALID;
  if (a->ld < (int64_t)a->rows || b->ld < (int64_t)b->rows || c->ld < (int64_t)c->rows) return INVALID;
  if (a->type == I8 && (d->compute != COMPUTE_32I || d->scale_type != I32 || c->type != I32)) return NOT_SUPPORTED;
  if (a->type != I8 && (d->compute != COMPUTE_32F || d->scale_type != F32)) return NOT_SUPPORTED;
  if (d->mode_a > 3 || d->mode_b > 3) return NOT_SUPPORTED;
  if ((d->epilogue & 4) && (!d->bias || d->bias_type != c->type)) return INVALID;
  return OK;
}
static int check(const Desc *d, const Layout *a, const Layout *b, const Layout *c, const Algo *algo, size_t *workspace) {
  int status = supported(d, a, b, c);
  if (status) return status;
  if (algo->index <= 0 || algo->index > SOLUTIONS || algo->index % 7 == 0) return NOT_SUPPORTED;
  *workspace = algo->index % 11 ? 0 : 4 << 20;
  return OK;
}

int hipblasLtMatmul(void *handle, Desc *d, const void *alpha, const void *a, Layout *la, const void *b, Layout *lb,
                    const void *beta, const void *c, Layout *lc, void *out, Layout *ld, const Algo *algo,
                    void *workspace, size_t bytes, void *stream) {
  size_t needed = 0;
  int status = check(d, la, lb, ld, algo, &needed);
  if (status) return status;
  if (needed > bytes || (needed && !workspace) || c != out || lc != ld) return INVALID;
  double one = d->scale_type == I32 ? *(const int32_t *)alpha : *(const float *)alpha;
  double zero = d->scale_type == I32 ? *(const int32_t *)beta : *(const float *)beta;
  if (one != 1.0 || zero != 0.0) return INVALID;
  fake_matmuls++;
  fake_algo = *algo;
  product(d, OP_T, a, la, b, lb, out, ld);
  return OK;
}
int hipblasLtMatmulAlgoGetHeuristic(void *handle, Desc *d, Layout *a, Layout *b, Layout *c, Layout *out, Preference *p,
                                    int asked, Result *results, int *count) {
  fake_asked = asked;
  *count = 0;
  if (fake_supports_nothing) return NOT_SUPPORTED;
  for (int index = 40; index < 56 && *count < asked; index++) {
    Result result = {.algo = {.index = index, .most_workspace = p->workspace}, .waves = 1.5f};
    if (check(d, a, b, out, &result.algo, &result.workspace) || result.workspace > p->workspace) continue;
    results[(*count)++] = result;
  }
  return *count ? OK : NOT_SUPPORTED;
}

#ifndef OLD
/* hipblaslt_ext::getAllAlgos, and the operator that frees what its std::vector holds. */
int _ZN13hipblaslt_ext11getAllAlgosEPvNS_8GemmTypeE18hipblasOperation_tS2_11hipDataTypeS3_S3_S3_20hipblasComputeType_tRSt6vectorI33_hipblasLtMatmulHeuristicResult_tSaIS6_EE(
    void *handle, int gemm, int opa, int opb, int ta, int tb, int tc, int td, int compute, Vector *found) {
  if (gemm != 1 || opa < OP_N || opb < OP_N || opa > OP_T || opb > OP_T || tc != td || ta < 0 || compute < 2) return INVALID;
  found->begin = calloc(SOLUTIONS, sizeof(Result));
  found->end = found->room = found->begin + SOLUTIONS;
  fake_vectors++;
  for (int index = 1; index <= SOLUTIONS; index++) found->begin[index - 1].algo.index = index;
  return OK;
}
void _ZdlPv(void *memory) { fake_vectors--; free(memory); }
/* hipblaslt_ext::matmulIsAlgoSupported. */
int _ZN13hipblaslt_ext21matmulIsAlgoSupportedEPvP27hipblasLtMatmulDescOpaque_tPKvP29hipblasLtMatrixLayoutOpaque_tS6_S4_S6_S6_R22_hipblasLtMatmulAlgo_tRm(
    void *handle, Desc *d, const void *alpha, Layout *a, Layout *b, const void *beta, Layout *c, Layout *out,
    Algo *algo, size_t *workspace) {
  fake_checks++;
  if (!alpha || !beta || c != out) return INVALID;
  return check(d, a, b, out, algo, workspace);
}
#endif
