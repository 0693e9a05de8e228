"""Files as other programs ship them, shortened: names, keys and spelling are theirs."""

from __future__ import annotations

# vllm-project/vllm, model_executor/layers/quantization/utils/configs (10efe946, c6088cb1).
VLLM_NAME = "N=1536,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
VLLM = """{
    "1": {
        "BLOCK_SIZE_M": 64,
        "BLOCK_SIZE_N": 32,
        "BLOCK_SIZE_K": 128,
        "GROUP_SIZE_M": 64,
        "num_warps": 4,
        "num_stages": 5
    },
    "24": {
        "BLOCK_SIZE_M": 64,
        "BLOCK_SIZE_N": 32,
        "BLOCK_SIZE_K": 128,
        "GROUP_SIZE_M": 16,
        "num_warps": 4,
        "num_stages": 4
    },
    "4096": {
        "BLOCK_SIZE_M": 64,
        "BLOCK_SIZE_N": 128,
        "BLOCK_SIZE_K": 128,
        "GROUP_SIZE_M": 16,
        "num_warps": 4,
        "num_stages": 3
    }
}
"""
VLLM_AMD_NAME = "N=1536,K=7168,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128,128].json"
VLLM_AMD = """{
    "1": {
        "BLOCK_SIZE_K": 128,
        "BLOCK_SIZE_M": 32,
        "BLOCK_SIZE_N": 32,
        "GROUP_SIZE_M": 1,
        "kpack": 1,
        "matrix_instr_nonkdim": 16,
        "num_warps": 4
    }
}"""
VLLM_MOE_NAME = "E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
# sgl-project/sglang: a space in the name; SPLIT_K and SWAP_AB are its own.
SGLANG_NAME = "N=576,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"

# ROCm/aiter, aiter/ops/triton/configs/gemm (f35b2bb9, 3fe79f09).
AITER_NAME = "MI350X-GEMM-A16W16-N=256-K=7168.json"
AITER = """{
  "M_LEQ_64": {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 16,
    "BLOCK_SIZE_K": 512,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 3,
    "waves_per_eu": 1,
    "matrix_instr_nonkdim": 16,
    "cache_modifier": ".cg",
    "NUM_KSPLIT": 1,
    "kpack": 1
  },
  "M_GEQ_4096": {
    "BLOCK_SIZE_M": 128,
    "BLOCK_SIZE_N": 128,
    "BLOCK_SIZE_K": 64,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 2,
    "waves_per_eu": 1,
    "matrix_instr_nonkdim": 32,
    "cache_modifier": null,
    "NUM_KSPLIT": 1,
    "kpack": 1
  },
  "any": {
    "BLOCK_SIZE_M": 256,
    "BLOCK_SIZE_N": 256,
    "BLOCK_SIZE_K": 64,
    "GROUP_SIZE_M": 16,
    "num_warps": 8,
    "num_stages": 2,
    "waves_per_eu": 2,
    "matrix_instr_nonkdim": 16,
    "cache_modifier": null,
    "NUM_KSPLIT": 1,
    "kpack": 1
  }
}
"""
AITER_NAMED_NAME = "gfx1201-GEMM-A8W8_BLOCKSCALE-N=1024-K=1024.json"
AITER_NAMED = """{
    "small": {
        "BLOCK_SIZE_M": 32,
        "BLOCK_SIZE_N": 32,
        "BLOCK_SIZE_K": 128,
        "GROUP_SIZE_M": 1,
        "num_warps": 8,
        "num_stages": 1,
        "NUM_KSPLIT": 1,
        "waves_per_eu": 4,
        "kpack": 2,
        "matrix_instr_nonkdim": 16,
        "cache_modifier": "",
        "SPLITK_BLOCK_SIZE": 1024,
        "GROUP_K": 128,
        "GROUP_N": 128
    },
    "xlarge": {
        "BLOCK_SIZE_M": 64,
        "BLOCK_SIZE_N": 64,
        "BLOCK_SIZE_K": 128,
        "GROUP_SIZE_M": 16,
        "num_warps": 4,
        "num_stages": 1,
        "NUM_KSPLIT": 1,
        "waves_per_eu": 2,
        "kpack": 2,
        "matrix_instr_nonkdim": 16,
        "cache_modifier": ".cg",
        "SPLITK_BLOCK_SIZE": 1024,
        "GROUP_K": 128,
        "GROUP_N": 128
    }
}
"""

# pytorch, torch/cuda/tunable.py, and lines as newer versions write them.
TUNABLEOP = """Validator,PT_VERSION,2.2.0
Validator,ROCM_VERSION,6.0.0.0-12969-1544e39
Validator,HIPBLASLT_VERSION,0.6.0-a9c5cc7
Validator,ROCBLAS_VERSION,4.0.0-72e57364-dirty
GemmTunableOp_float_NT,nt_25088_4096_64,Gemm_Hipblaslt_1219,1.262
GemmTunableOp_BFloat16_TN,tn_5120_4149_17408_ld_17408_17408_5120,Gemm_Rocblas_1216,0.033
GemmAndBiasTunableOp_Half_TN,tn_3072_16_768_ld_768_768_3072,Default,0.01
GemmStridedBatchedTunableOp_BFloat16_NN,nn_64_32_128_B_12_ld_64_128_64,Default,0.01
GemmTunableOp_double_NN,nn_64_32_128_ld_64_128_64,Default
ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_64_12288_2048_ld_2048_2048_64_rw_1_bias_None,Default,0.1
ScaledGemmTunableOp_Float8_e4m3fnuz_Float8_e4m3fnuz_Half_TN,tn_64_128_256_ld_256_256_64_rw_0_bias_Half,Default,0.1
"""
