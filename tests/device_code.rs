//! Device code without a GPU: what `include/symwin.cuh` and the kernels compile to, for every architecture.
//!
//! They need NVRTC and nothing else (`scripts/kernels` fetches it). Without it they pass and say so, unless
//! `SYMWIN_REQUIRE_NVRTC` is set.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "these are tests; clippy takes helpers for none"
)]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use symwin::device::abi;
use symwin::nvrtc::{Nvrtc, NvrtcError, Options};

/// What every source must compile for, and since which NVRTC that can be.
const TARGETS: [(&str, (i32, i32)); 4] =
    [("sm_80", (11, 1)), ("sm_90", (11, 8)), ("sm_100", (12, 8)), ("sm_120", (12, 8))];

/// The header's own sources.
const BARRIER: &str = include_str!("device_code/barrier.cu");
const LL_A2A: &str = include_str!("device_code/ll_a2a.cu");
const MEMORY: &str = include_str!("device_code/memory.cu");
const WINDOWS: &str = include_str!("device_code/windows.cu");

struct Compiler(Nvrtc, Vec<&'static str>);

/// NVRTC and the architectures that it knows, or `None` with a word about it.
fn compiler() -> Option<Compiler> {
    match Nvrtc::load() {
        Ok(nvrtc) => {
            let version = nvrtc.version().unwrap();
            let known =
                TARGETS.iter().filter(|(_, since)| version >= *since).map(|(arch, _)| *arch).collect();
            Some(Compiler(nvrtc, known))
        }
        Err(error) if std::env::var_os("SYMWIN_REQUIRE_NVRTC").is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!(
                "\nNOT TESTED: device code, since {error}\n(scripts/kernels fetches NVRTC and tests it)\n"
            );
            None
        }
    }
}

impl Compiler {
    /// Compiles a source that must do so without a warning; gives the PTX.
    fn ptx(&self, source: &str, name: &str, options: &Options) -> String {
        let compiled = self.0.compile(source, name, options).unwrap_or_else(|error| panic!("{error}"));
        // NVRTC cannot make errors of warnings, but it tells of them.
        assert_eq!(compiled.log.trim(), "", "{name} for {}", options.arch);
        let is_real = options.arch.starts_with("sm_");
        assert_eq!(compiled.cubin.is_some_and(|cubin| cubin.starts_with(b"\x7fELF")), is_real);
        compiled.ptx
    }
}

/// The body of a kernel in PTX.
fn kernel<'p>(ptx: &'p str, name: &str) -> &'p str {
    let start = ptx.find(&format!(".entry {name}(")).unwrap_or_else(|| panic!("no kernel {name}"));
    let rest = &ptx[start + 1..];
    &rest[..rest.find(".entry ").unwrap_or(rest.len())]
}

fn count(ptx: &str, instruction: &str) -> usize {
    ptx.matches(instruction).count()
}

/// Kernels of the repository, as far as there are any.
fn kernels() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let files = fs::read_dir(folder).into_iter().flatten().map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "cu")).collect()
}

#[test]
fn the_header_compiles_alone_for_every_architecture_and_standard() {
    let Some(compiler) = compiler() else { return };
    for arch in &compiler.1 {
        for standard in ["-std=c++14", "-std=c++17", "-std=c++20"] {
            let options = Options::new(arch).option(standard);
            compiler.ptx("#include <symwin.cuh>\n#include <symwin.cuh>\n", "alone.cu", &options);
        }
    }
    compiler.ptx("#include <symwin.cuh>\n", "alone.cu", &Options::new("compute_90"));
}

#[test]
fn every_member_of_the_header_compiles_for_every_architecture() {
    let Some(compiler) = compiler() else { return };
    let sources =
        [("barrier.cu", BARRIER), ("ll_a2a.cu", LL_A2A), ("memory.cu", MEMORY), ("windows.cu", WINDOWS)];
    for arch in &compiler.1 {
        for (name, source) in sources {
            compiler.ptx(source, name, &Options::new(arch));
        }
    }
}

#[test]
fn every_kernel_compiles_for_every_architecture() {
    let Some(compiler) = compiler() else { return };
    for path in kernels() {
        let source = fs::read_to_string(&path).unwrap();
        for arch in &compiler.1 {
            compiler.ptx(&source, &path.file_name().unwrap().to_string_lossy(), &of_kernels(arch));
        }
    }
}

/// How the library's own kernels are compiled: means of 64-bit integers are of their exact sums.
fn of_kernels(arch: &str) -> Options {
    Options::new(arch).option("-std=c++17").option("-device-int128")
}

/// What is checked in is what the sources compile to. With `SYMWIN_WRITE_IMAGES` set it is written instead.
#[test]
fn the_images_of_the_kernels_are_those_of_their_sources() {
    let Some(compiler) = compiler() else { return };
    // The compiler of the images: other versions give other bytes.
    if compiler.0.version().unwrap() != (12, 9) {
        return;
    }
    for path in kernels() {
        let source = fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        for arch in ["sm_80", "sm_90", "sm_100", "sm_120", "compute_90"] {
            let compiled = compiler.0.compile(&source, &name, &of_kernels(arch)).unwrap();
            let (suffix, bytes) = match compiled.cubin {
                Some(cubin) => (format!("{arch}.cubin"), cubin),
                None => ("ptx".to_owned(), compiled.ptx.into_bytes()),
            };
            let hashed = |part: &str| holds(&bytes, part.as_bytes());
            assert!(
                !hashed("_INTERNAL_") && !hashed("_GLOBAL__N_"),
                "{name} for {arch} has a name with the compiler's process id: the image differs each time"
            );
            let image = path.with_file_name("images").join(format!("{stem}.{suffix}"));
            if std::env::var_os("SYMWIN_WRITE_IMAGES").is_some() {
                fs::write(&image, &bytes).unwrap();
            }
            let is = fs::read(&image).unwrap_or_default();
            assert!(
                is == bytes,
                "{} is stale: run scripts/kernels images, and commit what changed",
                image.display()
            );
        }
    }
}

/// Whether bytes hold a text.
fn holds(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// The parameters that the library passes have the sizes that its kernels expect.
#[test]
fn the_parameters_of_the_kernels_have_their_sizes() {
    let Some(compiler) = compiler() else { return };
    let comm = size_of::<abi::KernelComm>();
    for (stem, name, size) in [("all_reduce", "AllReduce", comm + 56), ("bench", "Bench", comm + 40)] {
        let path = kernels().into_iter().find(|path| path.file_stem().unwrap() == stem).unwrap();
        let check = format!("\nstatic_assert(sizeof({name}) == {size}, \"size\");\n");
        let source = fs::read_to_string(path).unwrap() + &check;
        compiler.ptx(&source, "sizes.cu", &of_kernels("sm_80"));
    }
}

#[test]
fn an_error_carries_the_log_with_the_line() {
    let Some(compiler) = compiler() else { return };
    let source = "#include <symwin.cuh>\n__global__ void k(symwin::DevComm comm) { comm.nothing = 1; }\n";
    let error = compiler.0.compile(source, "wrong.cu", &Options::new("sm_90")).unwrap_err();
    let NvrtcError::Compile { name, arch, log } = error else { panic!("{error}") };
    assert_eq!((&*name, &*arch), ("wrong.cu", "sm_90"));
    assert!(log.contains("wrong.cu(2)") && log.contains("nothing"), "{log}");
    let error = compiler.0.compile("", "empty.cu", &Options::new("sm_90").option("--no-such")).unwrap_err();
    assert!(matches!(&error, NvrtcError::Call { text, .. } if text.contains("--no-such")), "{error}");
}

#[test]
fn kernels_of_templates_are_named() {
    let Some(compiler) = compiler() else { return };
    let source = "template <class T> __global__ void set(T* to) { *to = VALUE; }\n#include \"more.h\"\n";
    let options =
        Options::new("sm_80").define("VALUE", 7).header("more.h", "").name("set<float>").name("set<int>");
    let compiled = compiler.0.compile(source, "set.cu", &options).unwrap();
    let [float, int] = &compiled.names[..] else { panic!("{:?}", compiled.names) };
    assert!(float != int && [float, int].iter().all(|name| compiled.ptx.contains(*name)));
    let wrong = compiler.0.compile(source, "set.cu", &options.name("nothing<int>"));
    assert!(matches!(wrong, Err(NvrtcError::Compile { .. })));
}

/// The Rust side of one struct: its size, and its fields with their offsets.
macro_rules! layout {
    ($rust:ident as $device:literal: $($field:ident),+ $(,)?) => {
        ($device, size_of::<abi::$rust>(), vec![$((stringify!($field), std::mem::offset_of!(abi::$rust, $field))),+])
    };
}

#[test]
fn structs_are_laid_out_on_the_device_as_they_are_here() {
    let Some(compiler) = compiler() else { return };
    let structs = [
        layout!(Window as "Window": host, lsa_flat_base, lsa_rank, world_rank, stride_4g, mc_offset_4k, net_offset_4k,
            flags, net_windows, net_segments, segments, endpoint_rank, endpoint_base, reserved),
        layout!(ResourceWindow as "ResourceWindow": lsa_flat_base, stride_4g, mc_offset_4k),
        layout!(TeamStruct as "Team": n_ranks, rank, stride),
        layout!(MultimemHandle as "MultimemHandle": base),
        layout!(LsaBarrierHandle as "LsaBarrierHandle": buffer, n_barriers),
        layout!(LlA2aHandle as "LlA2aHandle": buffer, n_slots),
        layout!(WindowTableEntry as "WindowTableEntry": base, size, window),
        layout!(WindowTable as "WindowTable": entries, next),
        layout!(KernelComm as "DevComm": magic, version, rank, n_ranks, lsa_rank, lsa_size, window_table, lookup,
            resource_window, resource, resource_bytes, lsa_multimem, lsa_barrier, ll_a2a, ll_a2a_blocks, reserved_0,
            abort_flag, timeout_ns, reserved_1),
        layout!(LookupHead as "LookupHead": sequence, tree),
        layout!(LookupTree as "LookupTree": n_leaves, levels, reserved),
        layout!(LookupNode as "LookupNode": keys),
        layout!(LookupLeaf as "LookupLeaf": end, window),
    ];
    let mut source = "#include <symwin.cuh>\nusing namespace symwin;\n".to_owned();
    for (name, size, fields) in &structs {
        writeln!(source, "static_assert(sizeof({name}) == {size}, \"{name}\");").unwrap();
        writeln!(source, "extern \"C\" __global__ void of_{name}(unsigned* o) {{").unwrap();
        for (i, (field, _)) in fields.iter().enumerate() {
            // A constant that the compiler must work out, with a mark that no other constant has.
            let offset = format!("(unsigned)(unsigned long long)&(({name}*)0)->{field}");
            writeln!(source, "  ((volatile unsigned*)o)[{i}] = {MARK}u + {offset};").unwrap();
        }
        source.push_str("}\n");
    }
    writeln!(
        source,
        "static_assert(dev_comm_magic == {}u && dev_comm_version == {}u && table_entries == {}u && \
         resource_unit_bytes == {}u, \"constants\");",
        abi::KERNEL_MAGIC,
        abi::KERNEL_VERSION,
        abi::TABLE_ENTRIES,
        abi::RESOURCE_UNIT_BYTES
    )
    .unwrap();
    let ptx = compiler.ptx(&source, "layout.cu", &Options::new("sm_80"));
    for (name, _, fields) in &structs {
        let got = marked_stores(kernel(&ptx, &format!("of_{name}")));
        for (i, (field, offset)) in fields.iter().enumerate() {
            assert_eq!(got.get(&(4 * i)), Some(offset), "{name}.{field} in {got:?}");
        }
    }
}

/// So that offsets are told from other constants.
const MARK: usize = 0x5a00_0000;

/// Of each store of a marked constant: where it goes, and the constant without the mark.
fn marked_stores(ptx: &str) -> HashMap<usize, usize> {
    let mut registers = HashMap::new();
    let mut stores = HashMap::new();
    for line in ptx.lines().map(|line| line.trim().trim_end_matches(';')) {
        let constant = |operand: &str, registers: &HashMap<String, usize>| {
            operand.parse::<usize>().ok().or_else(|| registers.get(operand).copied())
        };
        let Some((operation, operands)) = line.split_once(char::is_whitespace) else { continue };
        let Some((first, second)) = operands.split_once(", ") else { continue };
        let Some(value) = constant(second.trim(), &registers) else { continue };
        if operation.starts_with("mov.") {
            registers.insert(first.trim().to_owned(), value);
        } else if operation.starts_with("st.") && value >= MARK {
            let offset = first.trim().trim_end_matches(']').rsplit_once('+');
            stores.insert(offset.map_or(0, |(_, offset)| offset.parse().unwrap()), value - MARK);
        }
    }
    stores
}

#[test]
fn a_barrier_is_made_of_the_wanted_instructions() {
    let Some(compiler) = compiler() else { return };
    for arch in &compiler.1 {
        let ptx = compiler.ptx(BARRIER, "barrier.cu", &Options::new(arch));
        let least = kernel(&ptx, "least");
        // A thread's first peer and the others, which few threads have.
        assert_eq!(count(least, "ld.acquire.sys.global.u32"), 2, "two places to look in, for {arch}");
        assert_eq!(count(least, "st.release.sys.global.u32"), 1, "one release for each thread, for {arch}");
        assert_eq!(count(least, "multimem."), 0, "for {arch}");
        let multimem = kernel(&ptx, "multimem_cta");
        let wanted = if *arch == "sm_80" { 0 } else { 1 };
        assert!(count(multimem, "multimem.red.release.sys.global.add.u32") >= wanted);
        assert_eq!(count(&ptx, "multimem.") > 0, wanted > 0, "for {arch}");
    }
}

#[test]
fn a_lookup_reads_a_node_at_once_and_waits_for_few_loads() {
    let Some(compiler) = compiler() else { return };
    for arch in &compiler.1 {
        let ptx = compiler.ptx(WINDOWS, "windows.cu", &Options::new(arch));
        let find = kernel(&ptx, "find");
        assert_eq!(count(find, "ld.relaxed.sys.global.v2.u64"), 8, "the keys of one node, for {arch}");
        assert_eq!(count(find, "ld.acquire.sys.global.v2.u64"), 1, "the leaf, for {arch}");
        assert_eq!(count(find, "fence"), 0, "for {arch}");
        assert_eq!(count(find, ".local"), 0, "nothing in local memory, for {arch}");
    }
}

#[test]
fn a_slot_of_the_all_to_all_is_one_store_and_one_load() {
    let Some(compiler) = compiler() else { return };
    for arch in &compiler.1 {
        let ptx = compiler.ptx(LL_A2A, "ll_a2a.cu", &Options::new(arch));
        let least = kernel(&ptx, "of_a_team");
        assert_eq!(count(least, "ld.relaxed.sys.global.v2.u64"), 1, "for {arch}");
        assert!(count(least, "st.relaxed.sys.global.v2.u64") > 0, "for {arch}");
        assert_eq!(count(least, "fence"), 0, "for {arch}");
        assert_eq!(count(least, ".local"), 0, "for {arch}");
    }
}

#[test]
fn memory_instructions_are_those_of_their_names() {
    let Some(compiler) = compiler() else { return };
    let everywhere = [
        "ld.acquire.sys.global.u32",
        "ld.acquire.sys.global.u64",
        "ld.relaxed.sys.global.u32",
        "ld.relaxed.sys.global.v4.u32",
        "st.release.sys.global.u32",
        "st.release.sys.global.u64",
        "st.relaxed.sys.global.v4.u32",
        "red.release.sys.global.add.u32",
        "atom.acq_rel.sys.global.add.u32",
        "fence.acq_rel.sys",
        "nanosleep.u32",
    ];
    let multicast = [
        "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.f16x2",
        "multimem.ld_reduce.relaxed.sys.global.min.f16x2",
        "multimem.ld_reduce.relaxed.sys.global.max.v4.bf16x2",
        "multimem.ld_reduce.relaxed.sys.global.add.v4.f32",
        "multimem.ld_reduce.relaxed.sys.global.add.f64",
        "multimem.ld_reduce.relaxed.sys.global.add.u32",
        "multimem.ld_reduce.relaxed.sys.global.add.u64",
        "multimem.st.relaxed.sys.global.v4.f32",
        "multimem.st.relaxed.sys.global.v4.f16x2",
        "multimem.red.release.sys.global.add.u32",
        "multimem.red.relaxed.sys.global.add.v4.f16x2",
    ];
    for arch in &compiler.1 {
        let ptx = compiler.ptx(MEMORY, "memory.cu", &Options::new(arch));
        for instruction in everywhere {
            assert!(ptx.contains(instruction), "{instruction} for {arch}");
        }
        for instruction in multicast {
            assert_eq!(ptx.contains(instruction), *arch != "sm_80", "{instruction} for {arch}");
        }
    }
}

/// Loads and stores through the switch are as wide as the type allows, with 8 of them under way at a time.
#[test]
fn the_all_reduce_through_the_switch_is_made_of_its_instructions() {
    let Some(compiler) = compiler() else { return };
    let path = kernels().into_iter().find(|path| path.file_stem().unwrap() == "all_reduce").unwrap();
    let source = fs::read_to_string(path).unwrap();
    let of_types = [
        ("f32", "add.v4.f32", "v4.f32"),
        ("f64", "add.f64", "f64"),
        ("i32", "add.u32", "u32"),
        ("i64", "add.u64", "u64"),
        ("f16", "add.acc::f32.v4.f16x2", "v4.f16x2"),
        ("bf16", "add.acc::f32.v4.bf16x2", "v4.f16x2"),
    ];
    for arch in &compiler.1 {
        // The PTX alone: machine code takes much longer, and another test makes it.
        let ptx = compiler.ptx(&source, "all_reduce.cu", &of_kernels(&arch.replace("sm_", "compute_")));
        if *arch == "sm_80" {
            assert_eq!(count(&ptx, "multimem"), 0, "not on {arch}");
            continue;
        }
        assert_eq!(count(&ptx, ".entry symwin_all_reduce_multimem_"), of_types.len(), "for {arch}");
        for (dtype, load, store) in of_types {
            let kernel = kernel(&ptx, &format!("symwin_all_reduce_multimem_{dtype}"));
            let loads = count(kernel, &format!("multimem.ld_reduce.relaxed.sys.global.{load} "));
            let stores = count(kernel, &format!("multimem.st.relaxed.sys.global.{store} "));
            // And no others.
            assert_eq!((loads, count(kernel, "multimem.ld_reduce")), (8, 8), "{dtype} for {arch}");
            assert_eq!((stores, count(kernel, "multimem.st")), (8, 8), "{dtype} for {arch}");
            // Peers' inputs are there before the first load, and all is stored before peers go on.
            let at = |what: &str| kernel.find(what).unwrap_or_else(|| panic!("{what} in {dtype} for {arch}"));
            assert!(at("ld.acquire.sys.global.u32") < at("multimem.ld_reduce"), "{dtype} for {arch}");
            assert!(
                kernel.rfind("multimem.st") < kernel.rfind("st.release.sys.global.u32"),
                "{dtype} for {arch}"
            );
            assert_eq!(count(kernel, ".local"), 0, "{dtype} for {arch}");
        }
    }
}
