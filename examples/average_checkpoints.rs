//! Averages checkpoints: NumPy files of 32-bit floats, a rank for each file.
//!
//! ```console
//! cargo run --release --example average_checkpoints -- average.npy step1.npy step2.npy step3.npy
//! cargo run --release --example average_checkpoints
//! ```
//!
//! Without arguments it makes files of its own in a temporary folder. Every rank copies its array into a window, and
//! one all-reduce puts the mean of all into every window. (`symwin run --op mean --input ... --output ...` does this
//! for all types of numbers, orders of elements and versions of the format.)
#![allow(clippy::print_stdout, reason = "an example shows what it has done")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs, thread};

use symwin::coll::{DType, ReduceOp};
use symwin::{Communicator, WindowFlags};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    if let Some(output) = arguments.next() {
        return average(&arguments.collect::<Vec<_>>(), &output);
    }
    let folder = env::temp_dir().join(format!("average-checkpoints-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let done = with_own_files(&folder);
    fs::remove_dir_all(&folder)?;
    done
}

/// The mean of `inputs`, checked, to `output`.
fn average(inputs: &[PathBuf], output: &Path) -> Result<()> {
    let arrays = inputs.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
    let Some(first) = arrays.first() else { return Err("name the output and then the checkpoints".into()) };
    for (array, path) in arrays.iter().zip(inputs) {
        if array.shape != first.shape {
            let shapes = format!("{} instead of {}", array.shape, first.shape);
            return Err(format!("{} has the shape {shapes}", path.display()).into());
        }
    }
    let ranks = Communicator::in_process(u32::try_from(arrays.len())?)?;
    let means = thread::scope(|scope| {
        let start = |(comm, array)| scope.spawn(move || rank(comm, array));
        let threads: Vec<_> = ranks.into_iter().zip(&arrays).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect::<Result<Vec<_>>>()
    })?;

    // Every rank has the same bits, and they are the mean that one loop finds, but for rounding.
    assert!(means.iter().all(|mean| mean == &means[0]));
    for (index, mean) in floats(&means[0]).enumerate() {
        let exact: f64 = arrays.iter().map(|array| value(array, index)).sum::<f64>() / arrays.len() as f64;
        let largest = arrays.iter().map(|array| value(array, index).abs()).fold(0.0, f64::max);
        let error = (f64::from(mean) - exact).abs();
        let wrong = error > largest * arrays.len() as f64 * f64::from(f32::EPSILON);
        assert!(!wrong, "element {index}: {mean} instead of {exact}");
    }
    write(output, &first.shape, &means[0])?;
    println!("the mean of {} files of shape {} is in {}", inputs.len(), first.shape, output.display());
    Ok(())
}

/// One rank: its array in, the mean of all out.
fn rank(comm: Communicator, array: &Array) -> Result<Vec<u8>> {
    let buffer = comm.alloc(array.bytes.len())?;
    buffer.write(0, &array.bytes)?;
    let window = comm.register(&buffer, WindowFlags::COLL_SYMMETRIC)?;
    comm.all_reduce(&window.whole(), &window.whole(), DType::F32, ReduceOp::Mean)?;
    let mut mean = vec![0; array.bytes.len()];
    buffer.read(0, &mut mean)?;
    comm.finalize()?;
    Ok(mean)
}

/// Makes checkpoints, averages them, and looks into the file that comes out.
fn with_own_files(folder: &Path) -> Result<()> {
    let mut inputs = Vec::new();
    for step in 0..4_u8 {
        let values = (0..1000_u16).flat_map(|i| (f32::from(i) + f32::from(step)).to_le_bytes());
        let path = folder.join(format!("step{step}.npy"));
        write(&path, "(10, 100)", &values.collect::<Vec<_>>())?;
        inputs.push(path);
    }
    let output = folder.join("average.npy");
    average(&inputs, &output)?;
    let mean = read(&output)?;
    assert_eq!(mean.shape, "(10, 100)");
    assert!(floats(&mean.bytes).eq((0..1000_u16).map(|i| f32::from(i) + 1.5)));
    Ok(())
}

/// A file's array: its shape as NumPy writes it, and its elements, little-endian and row by row.
struct Array {
    shape: String,
    bytes: Vec<u8>,
}

/// Reads a file of the NumPy format 1.0: a magic number, the length of the header, the header, a Python dictionary, and
/// the elements.
fn read(path: &Path) -> Result<Array> {
    let file = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let array = parse(&file).ok_or("no NumPy file of format 1.0 with 32-bit little-endian floats in C order");
    array.map_err(|what| format!("{}: {what}", path.display()).into())
}

fn parse(file: &[u8]) -> Option<Array> {
    let rest = file.strip_prefix(MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let (header, elements) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    let header = str::from_utf8(header).ok()?;
    if !header.contains("'descr': '<f4'") || !header.contains("'fortran_order': False") {
        return None;
    }
    let shape = header.split_once("'shape': (")?.1.split_once(')')?.0;
    let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty());
    let count =
        sizes.map(|size| size.parse::<usize>().ok()).try_fold(1, |all: usize, one| all.checked_mul(one?))?;
    let bytes = elements.get(..count.checked_mul(4)?)?.to_vec();
    (!bytes.is_empty()).then(|| Array { shape: format!("({shape})"), bytes })
}

fn write(path: &Path, shape: &str, bytes: &[u8]) -> Result<()> {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    // The elements begin at a multiple of 64 bytes.
    let padding =
        (MAGIC.len() + 2 + header.len() + 1).next_multiple_of(64) - MAGIC.len() - 2 - header.len() - 1;
    header.push_str(&" ".repeat(padding));
    header.push('\n');
    let length = u16::try_from(header.len())?.to_le_bytes();
    let file = [MAGIC, &length, header.as_bytes(), bytes].concat();
    fs::write(path, file).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

fn value(array: &Array, index: usize) -> f64 {
    floats(&array.bytes[4 * index..4 * index + 4]).next().map_or(f64::NAN, f64::from)
}

const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";
