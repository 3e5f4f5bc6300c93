//! symwin beside cudarc on a GPU: the program's own context and streams, cudarc's copies on symwin's memory, and a
//! kernel of the program's that takes a device communicator and a window.
//!
//! ```console
//! cargo run --features cuda,nvrtc --example cuda_interop
//! ```
//!
//! Two ranks share the first GPU. Each fills its buffer by a copy of cudarc's; a kernel, compiled here by NVRTC and
//! launched by cudarc, writes twice its numbers into the other rank's memory; and each checks, by cudarc's copies from
//! the other's memory, what it has written there. Without a CUDA driver or NVRTC it says what is missing.
#![allow(unsafe_code, reason = "launches of kernels are unsafe: nobody checks what kernels do")]
#![allow(clippy::print_stdout, reason = "an example shows what it has done")]

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use symwin::driver::Driver;
use symwin::driver::cuda::{CudaDriver, probe};
use symwin::nvrtc::{self, NvrtcError, Options};
use symwin::{Buffer, Communicator, Config, DevComm, DevCommRequirements, Group, Rank, Window, WindowFlags};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Every thread takes the numbers of this rank's part and stores twice that into the second half of a peer's part.
const SOURCE: &str = r#"
    #include <symwin.cuh>
    extern "C" __global__ void twice(symwin::DevComm comm, symwin::Window const* window, float const* own, unsigned n) {
        unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
        int peer = (comm.lsa_rank + 1) % comm.lsa_size;
        float* theirs = symwin::lsa_pointer<float>(*window, n * sizeof(float), peer);
        if (i < n) theirs[i] = 2 * own[i];
    }
"#;

fn main() -> Result<()> {
    if let Err(absent) = probe() {
        println!("nothing done: {absent}");
        return Ok(());
    }
    // What a program that uses cudarc has already.
    let context = match CudaContext::new(0) {
        Ok(context) => context,
        Err(error) => return Err(format!("GPU 0: {error}").into()),
    };
    let Some(twice) = compile(&context)? else { return Ok(()) };

    // The ranks work in the program's own context.
    let driver = CudaDriver::with_context(Arc::clone(&context))?;
    let config = Config::from_env()?.devices(move |_| Ok(Arc::clone(&driver) as Arc<dyn Driver>));
    let ranks = Communicator::in_process_with(RANKS, &config)?;
    let group = Group::named("interop");
    let mut pending = Vec::new();
    for comm in &ranks {
        let buffer = comm.alloc(2 * HALF_BYTES)?;
        let window = group.register(comm, &buffer, WindowFlags::empty());
        pending.push((buffer, window, group.create_dev_comm(comm, DevCommRequirements::new())));
    }
    group.end()?;
    let mut made = Vec::new();
    for (buffer, window, dev_comm) in pending {
        made.push((buffer, window.wait()?, dev_comm.wait()?, context.new_stream()?));
    }

    for (comm, (buffer, window, dev_comm, stream)) in ranks.iter().zip(&made) {
        run(comm, buffer, window, dev_comm, stream, &twice)?;
    }
    for (comm, (_, window, _, stream)) in ranks.iter().zip(&made) {
        check(comm, window, stream)?;
    }
    drop(made);
    ranks.into_iter().try_for_each(Communicator::finalize)?;
    println!(
        "{RANKS} ranks have written {N} numbers each into the other's memory, by a kernel that cudarc launched"
    );
    Ok(())
}

/// The kernel; none where there is no NVRTC.
fn compile(context: &Arc<CudaContext>) -> Result<Option<CudaFunction>> {
    let (major, minor) = context.compute_capability()?;
    let compiled = match nvrtc::compile(SOURCE, "twice.cu", &Options::new(&format!("sm_{major}{minor}"))) {
        Ok(compiled) => compiled,
        Err(missing @ NvrtcError::Missing { .. }) => {
            println!("nothing done: {missing}");
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let cubin = compiled.cubin.ok_or("NVRTC gave no binary")?;
    let module = context.load_module(Ptx::from_binary(cubin))?;
    Ok(Some(module.load_function("twice")?))
}

/// Fills the rank's buffer and launches its kernel; waits for neither.
fn run(
    comm: &Communicator,
    buffer: &Buffer,
    window: &Window,
    dev_comm: &DevComm,
    stream: &Arc<CudaStream>,
    twice: &CudaFunction,
) -> Result<()> {
    let numbers: Vec<f32> = (0..N).map(|index| number(comm.rank(), index)).collect();
    let mut own = buffer.slice(0..HALF_BYTES)?.device_view::<f32>(stream)?;
    stream.memcpy_htod(&numbers, &mut own)?;

    let kernel_comm = dev_comm.device().to_kernel();
    let mut launch = stream.launch_builder(twice);
    launch.arg(&kernel_comm).arg(window).arg(&own).arg(&N);
    // SAFETY: these are the kernel's parameters. It stays in both ranks' windows, which `main` keeps until `check` has
    // waited for the stream, and nobody else touches the second halves meanwhile.
    unsafe { launch.launch(LaunchConfig::for_num_elems(N)) }?;
    Ok(())
}

/// Waits for the rank's kernel, and compares what it has left in the other rank's memory.
fn check(comm: &Communicator, window: &Window, stream: &Arc<CudaStream>) -> Result<()> {
    let peer = Rank::new((comm.rank().get() + 1) % RANKS);
    let theirs = window.device_view::<f32>(peer, HALF_BYTES..2 * HALF_BYTES, stream)?;
    let mut copy = stream.alloc_zeros::<f32>(N as usize)?;
    stream.memcpy_dtod(&theirs, &mut copy)?;
    let (seen, copied) = (stream.clone_dtoh(&theirs)?, stream.clone_dtoh(&copy)?);
    stream.synchronize()?;
    let expected: Vec<f32> = (0..N).map(|index| 2.0 * number(comm.rank(), index)).collect();
    assert!(seen == expected, "{} has written its numbers into the memory of {peer}", comm.rank());
    assert!(copied == expected, "a copy on the device is the same");
    Ok(())
}

/// A rank's number at an index; all are exact.
#[allow(clippy::cast_precision_loss, reason = "they are small")]
fn number(rank: Rank, index: u32) -> f32 {
    (1000 * rank.get() + index % 1000) as f32
}

const RANKS: u32 = 2;
const N: u32 = 1 << 18;
const HALF_BYTES: usize = 4 * N as usize;
