//! .npy files, made and read without the program's own code.

use std::fs;
use std::path::{Path, PathBuf};

/// A type of element of .npy files.
pub(crate) trait Element: Copy + std::fmt::Debug + 'static {
    /// Its name without the byte order: `f4`.
    const CODE: &'static str;
    fn to_le(self) -> Vec<u8>;
    fn from_le(bytes: &[u8]) -> Self;
}

macro_rules! element {
    ($($type:ty: $code:literal;)*) => {$(
        impl Element for $type {
            const CODE: &'static str = $code;

            fn to_le(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }

            fn from_le(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().unwrap())
            }
        }
    )*};
}

element! {
    f32: "f4";
    f64: "f8";
    i32: "i4";
    i64: "i8";
    u8: "u1";
    half::f16: "f2";
}

/// How an array is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// `<`, `>` or `|`.
    pub(crate) order: char,
    /// `True` or `False`.
    pub(crate) fortran: &'static str,
    /// `(2, 3)`.
    pub(crate) shape: &'static str,
}

/// A whole file.
pub(crate) fn file<T: Element>(form: Form, values: &[T]) -> Vec<u8> {
    let Form { order, fortran, shape } = form;
    let header = header(&format!("'{order}{}'", T::CODE), fortran, shape);
    let elements = values.iter().flat_map(|value| in_order(order, value.to_le()));
    header.into_iter().chain(elements).collect()
}

/// A file's bytes before its elements.
pub(crate) fn header(descr: &str, fortran: &str, shape: &str) -> Vec<u8> {
    let mut text = format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}");
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    let length = u16::try_from(text.len()).unwrap().to_le_bytes();
    [b"\x93NUMPY\x01\x00".as_slice(), &length, text.as_bytes()].concat()
}

/// The elements of a file that must have this form.
pub(crate) fn elements<T: Element>(form: Form, file: &[u8]) -> Vec<T> {
    let Form { order, fortran, shape } = form;
    let header = header(&format!("'{order}{}'", T::CODE), fortran, shape);
    let shown = String::from_utf8_lossy(&file[..header.len().min(file.len())]);
    assert!(file.starts_with(&header), "{shown}");
    file[header.len()..]
        .chunks(size_of::<T>())
        .map(|bytes| T::from_le(&in_order(order, bytes.to_vec())))
        .collect()
}

/// Writes `r0.npy`, `r1.npy` and so on.
pub(crate) fn inputs(directory: &Path, files: &[Vec<u8>]) -> Vec<PathBuf> {
    let write = |(rank, bytes): (usize, &Vec<u8>)| {
        let path = directory.join(format!("r{rank}.npy"));
        fs::write(&path, bytes).unwrap();
        path
    };
    files.iter().enumerate().map(write).collect()
}

fn in_order(order: char, mut bytes: Vec<u8>) -> Vec<u8> {
    if order == '>' {
        bytes.reverse();
    }
    bytes
}
