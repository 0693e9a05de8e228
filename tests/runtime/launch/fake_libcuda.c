/* A libcuda that is none: it has the driver's own types (cuda.h), writes what it is asked into a text, and does nothing. */
#include <cuda.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static char log_[1 << 16];
static int fails;

static void say(const char *form, ...) {
    size_t used = strlen(log_);
    va_list values;
    va_start(values, form);
    vsnprintf(log_ + used, sizeof(log_) - used, form, values);
    va_end(values);
}

const char *fake_log(void) { return log_; }
void fake_reset(int failing) { log_[0] = 0; fails = failing; }

static CUcontext current;
CUresult cuCtxGetCurrent(CUcontext *context) { *context = current; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal + 40; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    say("primary context of %d\n", device);
    *context = (CUcontext)0x50;
    return fails ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) { current = context; say("current %p\n", (void *)context); return CUDA_SUCCESS; }

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    *module = (CUmodule)0x10;
    say("load %.4s\n", (const char *)image);
    return fails ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = (CUfunction)0x20;
    say("function %s of %p\n", name, (void *)module);
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    say("shared %p %d %d\n", (void *)function, attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, value);
    return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
    say("prefers shared %p %d\n", (void *)function, config == CU_FUNC_CACHE_PREFER_SHARED);
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t size) {
    *address = 0x500;
    say("memory %zu\n", size);
    return fails ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr address) {
    say("free %p\n", (void *)address);
    return fails ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuStreamGetId(CUstream stream, unsigned long long *number) {
    *number = (unsigned long long)(uintptr_t)stream + 3;
    return fails ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    *stream = (CUstream)0x70;
    say("stream, waits for none %d\n", flags == CU_STREAM_NON_BLOCKING);
    return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t size, CUstream stream) {
    say("%d in %zu at %p by %p\n", value, size, (void *)address, (void *)stream);
    return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) { say("wait for %p\n", (void *)stream); return CUDA_SUCCESS; }
CUresult cuStreamDestroy(CUstream stream) { say("end of %p\n", (void *)stream); return CUDA_SUCCESS; }

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    say("%s\n", *mode == CU_STREAM_CAPTURE_MODE_RELAXED ? "relaxed" : "global");
    *mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
    say("launch %p %ux%ux%u of %ux%ux%u, %u bytes, stream %p, extra %p:", (void *)function, config->gridDimX,
        config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ,
        config->sharedMemBytes, (void *)config->hStream, (void *)extra);
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            say(" cluster %ux%ux%u", attribute->value.clusterDim.x, attribute->value.clusterDim.y,
                attribute->value.clusterDim.z);
        else if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE)
            say(" spread %d", attribute->value.clusterSchedulingPolicyPreference == CU_CLUSTER_SCHEDULING_POLICY_SPREAD);
        else if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            say(" early %d", attribute->value.programmaticStreamSerializationAllowed);
        else
            say(" unknown attribute");
    }
    say(" first %llu\n", *(unsigned long long *)params[0]);
    return fails ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    memset(map, 0xff, sizeof(*map));
    say("map bf16 %d rank %u at %p, %llux%llu by %llu, box %ux%u, steps %ux%u, plain %d, swizzle128 %d, l2_128 %d, "
        "zeros %d, aligned %d\n",
        type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, address, (unsigned long long)sizes[0],
        (unsigned long long)sizes[1], (unsigned long long)strides[0], box[0], box[1], steps[0], steps[1],
        interleave == CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle == CU_TENSOR_MAP_SWIZZLE_128B,
        promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_128B, fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        (unsigned long long)map % 64 == 0);
    return fails ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
    *version = 13010;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
    (void)error;
    *text = "what the driver says";
    return CUDA_SUCCESS;
}

#undef cuStreamGetCaptureInfo_v2
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *number, CUgraph *graph,
                                   const CUgraphNode **nodes, size_t *count) {
    (void)graph, (void)nodes, (void)count;
    *status = stream ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    *number = 99;
    return CUDA_SUCCESS;
}
