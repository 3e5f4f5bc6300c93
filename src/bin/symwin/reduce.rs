//! `--input` and `--output`: what is looked at before any rank starts.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use crate::npy::Header;
use crate::plan::Input;

/// Looks at every file: that it is there, well-formed and whole, and that all have the same shape, type and order.
pub(crate) fn inspect(paths: &[PathBuf]) -> anyhow::Result<Vec<Input>> {
    let inputs = paths
        .iter()
        .map(|path| {
            let header = header(path).with_context(|| path.display().to_string())?;
            Ok(Input { path: path.clone(), header })
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let Some((first, others)) = inputs.split_first() else { bail!("no --input files") };
    for other in others {
        check_alike(first, other)?;
    }
    Ok(inputs)
}

/// The header of a file whose length is what the header says.
fn header(path: &Path) -> anyhow::Result<Header> {
    // Asked before it is opened: opening a pipe waits for its writer.
    ensure!(fs::metadata(path)?.is_file(), "it is no regular file");
    let mut file = File::open(path)?;
    let header = Header::read(&mut file)?;
    let is = file.metadata()?.len();
    let data = header.len_bytes().unwrap_or(u64::MAX);
    let should = header.data_offset.saturating_add(data);
    let array = format!("an array of shape {} and type {}", header.shown_shape(), header.descr());
    if is < should {
        bail!("it is cut off: it has {is} bytes, but {array} needs {should}");
    }
    ensure!(is == should, "it goes on behind its array: it has {is} bytes, but {array} ends at {should}");
    Ok(header)
}

fn check_alike(first: &Input, other: &Input) -> anyhow::Result<()> {
    let differ = |what: &str, a: &str, b: &str| {
        let (first, other) = (first.path.display(), other.path.display());
        anyhow::anyhow!("the files differ in {what}: {first} has {a}, {other} has {b}")
    };
    let (a, b) = (&first.header, &other.header);
    if a.shape != b.shape {
        return Err(differ("shape", &a.shown_shape(), &b.shown_shape()));
    }
    if a.dtype != b.dtype {
        return Err(differ("type", &a.descr(), &b.descr()));
    }
    if !a.same_order(b) {
        let order = |header: &Header| if header.fortran_order { "Fortran order" } else { "C order" };
        return Err(differ("order", order(a), order(b)));
    }
    Ok(())
}
