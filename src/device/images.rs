//! The library's own kernels as the CUDA driver loads them: made from `kernels/` by `scripts/kernels`, which also says
//! with which compiler.

/// Kernels that were compiled together.
#[derive(Debug)]
pub(crate) struct Image {
    /// What the driver loads: a cubin, or PTX with a zero behind it.
    pub(crate) bytes: &'static [u8],
    /// The kernels in it.
    pub(crate) kernels: &'static [&'static str],
}

/// A cubin runs on its own generation of devices, from its own minor version on; PTX on all later ones, by a driver that
/// is no older than its compiler, as those devices' drivers are.
macro_rules! images {
    ($name:literal) => {
        [
            (8, include_bytes!(concat!("../../kernels/images/", $name, ".sm_80.cubin"))),
            (9, include_bytes!(concat!("../../kernels/images/", $name, ".sm_90.cubin"))),
            (10, include_bytes!(concat!("../../kernels/images/", $name, ".sm_100.cubin"))),
            (12, include_bytes!(concat!("../../kernels/images/", $name, ".sm_120.cubin"))),
        ] as [(u32, &[u8]); 4]
    };
}

/// The images for a device of this compute capability; none where it is too old.
pub(crate) fn for_capability((major, _): (u32, u32)) -> Vec<Image> {
    let choose = |cubins: [(u32, &'static [u8]); 4], ptx: &'static [u8]| {
        let cubin = cubins.into_iter().find(|(generation, _)| *generation == major);
        cubin.map(|(_, bytes)| bytes).or((major > 8).then_some(ptx))
    };
    let all_reduce = choose(images!("all_reduce"), ALL_REDUCE_PTX.as_bytes());
    let bench = choose(images!("bench"), BENCH_PTX.as_bytes());
    let all = [(all_reduce, ALL_REDUCE), (bench, BENCH)];
    all.into_iter().filter_map(|(bytes, kernels)| Some(Image { bytes: bytes?, kernels })).collect()
}

const ALL_REDUCE_PTX: &str = concat!(include_str!("../../kernels/images/all_reduce.ptx"), "\0");
const BENCH_PTX: &str = concat!(include_str!("../../kernels/images/bench.ptx"), "\0");

const ALL_REDUCE: &[&str] = &[
    "symwin_all_reduce_one_shot_bf16",
    "symwin_all_reduce_one_shot_f16",
    "symwin_all_reduce_one_shot_f32",
    "symwin_all_reduce_one_shot_f64",
    "symwin_all_reduce_one_shot_i32",
    "symwin_all_reduce_one_shot_i64",
    "symwin_all_reduce_one_shot_u8",
    "symwin_all_reduce_two_shot_bf16",
    "symwin_all_reduce_two_shot_f16",
    "symwin_all_reduce_two_shot_f32",
    "symwin_all_reduce_two_shot_f64",
    "symwin_all_reduce_two_shot_i32",
    "symwin_all_reduce_two_shot_i64",
    "symwin_all_reduce_two_shot_u8",
];

const BENCH: &[&str] = &[
    "symwin_bench_barrier",
    "symwin_bench_barrier_bare",
    "symwin_bench_lookup",
    "symwin_bench_one_shot_bare",
    "symwin_bench_peers",
    "symwin_bench_spin",
];
