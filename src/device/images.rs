//! The library's own kernels as the CUDA driver loads them: made from `kernels/` by `scripts/kernels`, which also says
//! with which compiler.

/// Kernels that were compiled together.
#[derive(Debug)]
pub(crate) struct Image {
    /// What the driver loads: a cubin, or PTX with a zero behind it.
    pub(crate) bytes: &'static [u8],
    /// The kernels in it.
    pub(crate) kernels: Vec<&'static str>,
}

/// A cubin runs on its own generation of devices, from its own minor version on; PTX, which is for generation 9, on all
/// later ones, by a driver that is no older than its compiler, as those devices' drivers are.
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
        cubin.map(|(_, bytes)| bytes).or((major >= MULTICAST_GENERATION).then_some(ptx))
    };
    let all_reduce = choose(images!("all_reduce"), ALL_REDUCE_PTX.as_bytes());
    let bench = choose(images!("bench"), BENCH_PTX.as_bytes());
    let multimem = if major >= MULTICAST_GENERATION { ALL_REDUCE_MULTIMEM } else { &[] };
    let all = [(all_reduce, [ALL_REDUCE, multimem].concat()), (bench, BENCH.to_vec())];
    all.into_iter().filter_map(|(bytes, kernels)| Some(Image { bytes: bytes?, kernels })).collect()
}

/// The first generation of devices with multicast instructions. Its images, and PTX for later ones, have kernels of
/// them.
pub(crate) const MULTICAST_GENERATION: u32 = 9;

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

const ALL_REDUCE_MULTIMEM: &[&str] = &[
    "symwin_all_reduce_multimem_bf16",
    "symwin_all_reduce_multimem_f16",
    "symwin_all_reduce_multimem_f32",
    "symwin_all_reduce_multimem_f64",
    "symwin_all_reduce_multimem_i32",
    "symwin_all_reduce_multimem_i64",
];

const BENCH: &[&str] = &[
    "symwin_bench_barrier",
    "symwin_bench_barrier_bare",
    "symwin_bench_lookup",
    "symwin_bench_one_shot_bare",
    "symwin_bench_peers",
    "symwin_bench_spin",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that is listed and not there would fail the driver's start; one that is not listed cannot be launched.
    #[test]
    fn images_have_the_kernels_that_they_are_said_to_have() {
        for (major, images) in (7..=13).map(|major| (major, for_capability((major, 0)))) {
            assert_eq!(images.is_empty(), major < 8, "generation {major}");
            for Image { bytes, kernels } in images {
                // Kernels in PTX, and the names of their sections in a cubin, where there are several lists of those.
                let is_ptx = !bytes.starts_with(b"\x7fELF");
                let (before, after) = if is_ptx { (".entry ", "(") } else { ("\0.text.", "\0") };
                let count = |text: &str| bytes.windows(text.len()).filter(|w| *w == text.as_bytes()).count();
                let times = kernels.iter().map(|kernel| count(&format!("{before}{kernel}{after}")));
                let times: Vec<usize> = times.collect();
                assert!(!times.contains(&0), "generation {major}: {times:?} of {kernels:?}");
                let all = count(&format!("{before}symwin_"));
                assert_eq!(times.iter().sum::<usize>(), all, "generation {major}: others beside {kernels:?}");
                assert_eq!(is_ptx, !matches!(major, 8 | 9 | 10 | 12), "generation {major}");
            }
        }
    }
}
