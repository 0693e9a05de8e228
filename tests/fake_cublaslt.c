/* A libcublasLt without a GPU: what genkern calls of it, on host memory.
 *
 * It refuses attributes of another size than cublasLt.h says, computes what descriptors and layouts describe, element
 * by element, and has algorithms with capabilities, of which some do not run. Built with -DVERSION=131000 and the like.
 */
#ifndef VERSION
#define VERSION 131000
#endif
enum { OK = 0, INVALID = 7, NOT_SUPPORTED = 15 };
#include "fake_lt.h"

typedef struct { uint64_t workspace; uint32_t reductions, align[4]; } Preference;
/* The 64 bytes of an algorithm. */
typedef struct {
  uint32_t magic;
  int32_t id;
  uint32_t tile;
  int32_t splits;
  uint32_t reduction, swizzle, custom, stages;
  uint16_t inner, cluster;
  uint32_t rest[7];
} Algo;
typedef struct { Algo algo; size_t workspace; int state; float waves; int reserved[4]; } Result;
_Static_assert(sizeof(Algo) == 64, "cublasLtMatmulAlgo_t");
_Static_assert(sizeof(Result) == 96, "cublasLtMatmulHeuristicResult_t");

/* For tests: what was called how often, and what the last call and the last heuristic were told. */
int fake_matmuls, fake_checks, fake_creates, fake_alive;
int fake_fast;
void *fake_stream;
Algo fake_algo;
Preference fake_preference;
/* Makes every heuristic find nothing. */
int fake_supports_nothing;

#define MAGIC 0x6c746c74u
static const uint32_t TILES_66[] = {15, 17, 18, 20, 23, 24, 31, 32};
static const uint32_t TILES_21[] = {15, 20};
static const uint32_t STAGES[] = {16, 18, 35};

size_t cublasLtGetVersion(void) { return VERSION; }
int cublasLtCreate(void **handle) { fake_creates++; *handle = malloc(1); return OK; }

int cublasLtMatrixLayoutCreate(Layout **made, int type, uint64_t rows, uint64_t cols, int64_t ld) {
  *made = malloc(sizeof(Layout));
  **made = (Layout){type, rows, cols, ld};
  fake_alive++;
  return OK;
}
int cublasLtMatrixLayoutDestroy(Layout *layout) { free(layout); fake_alive--; return OK; }

int cublasLtMatmulDescCreate(Desc **made, int compute, int scale_type) {
  *made = calloc(1, sizeof(Desc));
  (*made)->compute = compute;
  (*made)->scale_type = scale_type;
  (*made)->epilogue = 1;
  (*made)->bias_type = -1;
  fake_alive++;
  return OK;
}
int cublasLtMatmulDescDestroy(Desc *desc) { free(desc); fake_alive--; return OK; }

int cublasLtMatmulDescSetAttribute(Desc *d, int attribute, const void *value, size_t size) {
  switch (attribute) {
    case 3: return copy(&d->transa, 4, value, size);
    case 4: return copy(&d->transb, 4, value, size);
    case 7: return copy(&d->epilogue, 4, value, size);
    case 8: return copy(&d->bias, 8, value, size);
    case 17: return copy(&d->scale_a, 8, value, size);
    case 18: return copy(&d->scale_b, 8, value, size);
    case 25: return copy(&d->fast, 1, value, size);
    case 26: return copy(&d->bias_type, 4, value, size);
    case 31: return VERSION < 120800 ? INVALID : copy(&d->mode_a, 4, value, size);
    case 32: return VERSION < 120800 ? INVALID : copy(&d->mode_b, 4, value, size);
  }
  return INVALID;
}

int cublasLtMatmulPreferenceCreate(Preference **made) { *made = calloc(1, sizeof(Preference)); fake_alive++; return OK; }
int cublasLtMatmulPreferenceDestroy(Preference *p) { free(p); fake_alive--; return OK; }
int cublasLtMatmulPreferenceSetAttribute(Preference *p, int attribute, const void *value, size_t size) {
  if (attribute == 1) return copy(&p->workspace, 8, value, size);
  if (attribute == 3) return copy(&p->reductions, 4, value, size);
  if (attribute >= 5 && attribute <= 8) return copy(&p->align[attribute - 5], 4, value, size);
  return INVALID;
}

static int supported(const Desc *d, const Layout *a, const Layout *b, const Layout *c) {
  uint64_t m = d->transa ? a->cols : a->rows, ka = d->transa ? a->rows : a->cols;
  uint64_t n = d->transb ? b->rows : b->cols, kb = d->transb ? b->cols : b->rows;
  if (ka != kb || m != c->rows || n != c->cols) return INVALID;
  if (a->ld < (int64_t)a->rows || b->ld < (int64_t)b->rows || c->ld < (int64_t)c->rows) return INVALID;
  int fp8 = a->type == E4M3 || a->type == E5M2;
  if (fp8 && (!d->transa || d->transb)) return NOT_SUPPORTED;
  if (a->type == I8 && (d->compute != 72 || d->scale_type != I32 || c->type != I32)) return NOT_SUPPORTED;
  if (a->type != I8 && (d->compute != 68 || d->scale_type != F32)) return NOT_SUPPORTED;
  if ((d->epilogue & 4) && (!d->bias || d->bias_type != c->type)) return INVALID;
  return OK;
}
static int runs(const Algo *algo, size_t *workspace) {
  if (algo->magic != MAGIC) return INVALID;
  /* Splits need a scheme to add them up, some depths no small tile, and this id has no clusters. */
  if ((algo->splits > 1) != (algo->reduction != 0)) return NOT_SUPPORTED;
  if (algo->stages == 18 && algo->tile < 17) return NOT_SUPPORTED;
  if (algo->id == 21 && algo->cluster) return NOT_SUPPORTED;
  *workspace = algo->splits > 1 ? (size_t)algo->splits << 20 : 0;
  return OK;
}
static int check(const Desc *d, const Layout *a, const Layout *b, const Layout *c, const Algo *algo, Result *result) {
  int status = supported(d, a, b, c);
  if (!status) status = runs(algo, &result->workspace);
  result->state = status;
  result->waves = 1.5f;
  return status;
}

int cublasLtMatmul(void *handle, Desc *d, const void *alpha, const void *a, Layout *la, const void *b, Layout *lb,
                   const void *beta, const void *c, Layout *lc, void *out, Layout *ld, const Algo *algo, void *workspace,
                   size_t bytes, void *stream) {
  Result result;
  int status = check(d, la, lb, ld, algo, &result);
  if (status) return status;
  if (result.workspace > bytes || (result.workspace && !workspace) || c != out || lc != ld) return INVALID;
  double one = d->scale_type == I32 ? *(const int32_t *)alpha : *(const float *)alpha;
  double zero = d->scale_type == I32 ? *(const int32_t *)beta : *(const float *)beta;
  int has_fast = la->type >= E4M3 && d->mode_a <= 3 && (d->fast == 0 || d->fast == 1);
  if (one != 1.0 || zero != 0.0 || (d->fast && !has_fast)) return INVALID;
  fake_matmuls++;
  fake_fast = d->fast;
  fake_stream = stream;
  fake_algo = *algo;
  product(d, 1, a, la, b, lb, out, ld);
  return OK;
}

int cublasLtMatmulAlgoGetIds(void *handle, int compute, int scale_type, int a, int b, int c, int d, int asked, int *ids,
                             int *count) {
  *count = asked < 3 ? asked : 3;
  memcpy(ids, (int[]){66, 21, 99}, sizeof(int) * *count);
  return OK;
}
int cublasLtMatmulAlgoInit(void *handle, int compute, int scale_type, int a, int b, int c, int d, int id, Algo *algo) {
  if (id != 66 && id != 21) return NOT_SUPPORTED;
  *algo = (Algo){.magic = MAGIC, .id = id, .splits = 1};
  return OK;
}
int cublasLtMatmulAlgoCheck(void *handle, Desc *d, Layout *a, Layout *b, Layout *c, Layout *out, const Algo *algo,
                            Result *result) {
  fake_checks++;
  return check(d, a, b, out, algo, result);
}
int cublasLtMatmulAlgoGetHeuristic(void *handle, Desc *d, Layout *a, Layout *b, Layout *c, Layout *out, Preference *p,
                                   int asked, Result *results, int *count) {
  fake_preference = *p;
  *count = 0;
  if (fake_supports_nothing) return NOT_SUPPORTED;
  for (int i = 0; i < 8 && *count < asked; i++) {
    Algo algo = {.magic = MAGIC, .id = 66, .tile = TILES_66[7 - i], .splits = 1, .stages = 35, .cluster = 2 + i % 3};
    if (i == 6) algo.splits = 4, algo.reduction = 2;
    Result result = {.algo = algo};
    int status = check(d, a, b, out, &algo, &result);
    if (status) return NOT_SUPPORTED;
    if (result.workspace > p->workspace || (algo.reduction & ~p->reductions)) continue;
    /* One that turns out not to be supported is in the list with its state. */
    if (i == 7) result.state = NOT_SUPPORTED;
    results[(*count)++] = result;
  }
  return OK;
}

static int answer(const void *value, size_t size, void *to, size_t given, size_t *written) {
  *written = size;
  if (!given) return OK;
  if (given != size || !to) return INVALID;
  memcpy(to, value, size);
  return OK;
}
int cublasLtMatmulAlgoCapGetAttribute(const Algo *algo, int attribute, void *to, size_t size, size_t *written) {
  int big = algo->id == 66;
  int32_t most_custom = big ? 3 : 0, splits = 1;
  uint32_t mask = 7, swizzles = big;
  switch (attribute) {
    case 0: return answer(&splits, 4, to, size, written);
    case 1: return answer(&mask, 4, to, size, written);
    case 2: return answer(&swizzles, 4, to, size, written);
    case 6: return big ? answer(TILES_66, sizeof TILES_66, to, size, written)
                       : answer(TILES_21, sizeof TILES_21, to, size, written);
    case 7: return answer(&most_custom, 4, to, size, written);
    case 13: return answer(STAGES, sizeof STAGES, to, size, written);
  }
  return INVALID;
}
static void *field(Algo *algo, int attribute, size_t *size) {
  void *places[] = {&algo->id, &algo->tile, &algo->splits, &algo->reduction, &algo->swizzle,
                    &algo->custom, &algo->stages, &algo->inner, &algo->cluster};
  *size = attribute < 7 ? 4 : 2;
  return attribute < 0 || attribute > 8 ? NULL : places[attribute];
}
int cublasLtMatmulAlgoConfigSetAttribute(Algo *algo, int attribute, const void *value, size_t size) {
  size_t own;
  void *place = field(algo, attribute, &own);
  return place && attribute ? copy(place, own, value, size) : INVALID;
}
int cublasLtMatmulAlgoConfigGetAttribute(const Algo *algo, int attribute, void *to, size_t size, size_t *written) {
  size_t own;
  void *place = field((Algo *)algo, attribute, &own);
  return place ? answer(place, own, to, size, written) : INVALID;
}
