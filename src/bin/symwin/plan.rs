//! What a run is to do: the same value for every rank, as a thread or in a process of its own.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use symwin::coll::{DType, ReduceOp};

use crate::backend::Device;
use crate::npy::Header;

/// What every rank does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) ranks: u32,
    pub(crate) device: Device,
    pub(crate) op: ReduceOp,
    pub(crate) data: Data,
}

/// What the windows hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Data {
    /// One window with each rank's own array.
    Arrays {
        /// By rank.
        inputs: Vec<Input>,
        /// Where rank 0 writes the result. Who made the job gives it its name.
        #[serde(with = "path_bytes")]
        result: PathBuf,
    },
    /// `pattern`'s numbers.
    Pattern { windows: u32, bytes: u64 },
}

/// One rank's array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Input {
    #[serde(with = "path_bytes")]
    pub(crate) path: PathBuf,
    pub(crate) header: Header,
}

impl Job {
    pub(crate) fn windows(&self) -> u32 {
        match &self.data {
            Data::Arrays { .. } => 1,
            Data::Pattern { windows, .. } => *windows,
        }
    }

    /// The size of each window in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.data {
            // Arrays have the same shape and type, and more bytes than can be counted were refused.
            Data::Arrays { inputs, .. } => inputs.first().and_then(|one| one.header.len_bytes()).unwrap_or(0),
            Data::Pattern { bytes, .. } => *bytes,
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        match &self.data {
            Data::Arrays { inputs, .. } => inputs.first().map_or(DType::F32, |one| one.header.dtype),
            Data::Pattern { .. } => DType::F32,
        }
    }

    /// Bytes of the device's memory that each rank takes: its windows, and on the host the parts that it works on.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        let windows = self.bytes().checked_mul(u64::from(self.windows()))?;
        let parts = 3 * self.bytes().min(PART_BYTES as u64);
        windows.checked_add(if self.device.is_cuda() { 0 } else { parts })
    }

    /// Each rank's memory that is filled, reduced and checked, in bytes: what progress is measured by.
    pub(crate) fn work_bytes(&self) -> u64 {
        3 * self.bytes() * u64::from(self.windows()) * u64::from(self.ranks)
    }
}

/// How much of a window a rank works on at a time: what a reduction in place takes of memory, and how often progress
/// is told.
pub(crate) const PART_BYTES: usize = 16 << 20;

/// Paths are bytes, not always text.
mod path_bytes {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Vec::deserialize(from).map(|bytes| OsString::from_vec(bytes).into())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_job_travels_as_json_whatever_its_paths_are() {
        let header = Header {
            dtype: DType::F16,
            big_endian: true,
            fortran_order: true,
            shape: vec![2, 3],
            data_offset: 128,
        };
        let path = PathBuf::from(OsStr::from_bytes(b"no text \xff.npy"));
        let inputs = vec![Input { path: path.clone(), header }];
        let job = Job {
            ranks: 1,
            device: Device::Host,
            op: ReduceOp::Mean,
            data: Data::Arrays { inputs, result: path },
        };
        let json = serde_json::to_string(&job).unwrap();
        assert_eq!(serde_json::from_str::<Job>(&json).unwrap(), job);
        assert_eq!((job.bytes(), job.windows(), job.dtype()), (12, 1, DType::F16));
    }
}
