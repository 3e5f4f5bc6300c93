// Memory instructions by name.
#include <symwin.cuh>

using namespace symwin;

extern "C" __global__ void plain(u32* words, u64* longs, U32x4* fours, U64x2* pairs) {
  st_relaxed(words, ld_acquire(words + 1) + ld_relaxed(words + 2));
  st_release(words, atom_add_acq_rel(words + 3, 1));
  st_relaxed(longs, ld_acquire(longs + 1) + ld_relaxed(longs + 2));
  st_release(longs, globaltimer());
  st_relaxed(fours, ld_relaxed(fours + 1));
  st_relaxed(pairs, ld_relaxed(pairs + 1));
  st_relaxed(pairs + 2, ld_acquire(pairs + 3));
  red_add_relaxed(words, 1);
  red_add_release(words, 1);
  fence_acq_rel_sys();
  nanosleep(100);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

extern "C" __global__ void loads(u32* halves, u64* longs, U32x4* fours, float* floats, F32x4* quads,
                                 double* doubles) {
  halves[0] = multimem_ld_reduce_add_f16x2(halves + 1) + multimem_ld_reduce_min_f16x2(halves + 2);
  halves[0] += multimem_ld_reduce_max_f16x2(halves + 3) + multimem_ld_reduce_add_bf16x2(halves + 4);
  halves[0] += multimem_ld_reduce_min_bf16x2(halves + 5) + multimem_ld_reduce_max_bf16x2(halves + 6);
  halves[0] += multimem_ld_reduce_add_u32(halves + 7);
  fours[0] = multimem_ld_reduce_add_f16x2_x4(fours + 8);
  fours[1] = multimem_ld_reduce_min_f16x2_x4(fours + 9);
  fours[2] = multimem_ld_reduce_max_f16x2_x4(fours + 10);
  fours[3] = multimem_ld_reduce_add_bf16x2_x4(fours + 11);
  fours[4] = multimem_ld_reduce_min_bf16x2_x4(fours + 12);
  fours[5] = multimem_ld_reduce_max_bf16x2_x4(fours + 13);
  floats[0] = multimem_ld_reduce_add_f32(floats + 1);
  quads[0] = multimem_ld_reduce_add_f32x4(quads + 1);
  doubles[0] = multimem_ld_reduce_add_f64(doubles + 1);
  longs[0] = multimem_ld_reduce_add_u64(longs + 1);
}

extern "C" __global__ void stores(u32* words, u64* longs, U32x4* fours, float* floats, F32x4* quads, double* doubles) {
  multimem_st_u32(words, 1);
  multimem_st_u64(longs, 1);
  multimem_st_f32(floats, 1);
  multimem_st_f64(doubles, 1);
  multimem_st_f32x4(quads, quads[1]);
  multimem_st_x4(fours, fours[1]);
  multimem_red_add_relaxed(words, 1);
  multimem_red_add_release(words, 1);
  multimem_red_add_f16x2(words, 1);
  multimem_red_add_bf16x2(words, 1);
  multimem_red_add_f16x2_x4(fours, fours[1]);
  multimem_red_add_bf16x2_x4(fours, fours[1]);
  multimem_red_add_f32(floats, 1);
  multimem_red_add_f32x4(quads, quads[1]);
  multimem_red_add_f64(doubles, 1);
}

#endif
