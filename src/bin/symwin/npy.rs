//! The .npy format: its header, read with care and written.
//!
//! A file is a magic string, a version, the length of the header, the header as the text of a Python dictionary
//! (`{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`) and the elements. This reader takes arrays of
//! plain numbers only, bounds everything before it allocates, and never recurses, whatever the file holds.

use std::fmt;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};
use symwin::coll::DType;

/// What an array is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// The type of its elements, never `Bf16`, which .npy does not have.
    pub(crate) dtype: DType,
    /// Whether the elements are stored with their highest byte first.
    pub(crate) big_endian: bool,
    /// Whether the first index varies fastest.
    pub(crate) fortran_order: bool,
    /// Its length in each dimension.
    pub(crate) shape: Vec<u64>,
    /// Where in the file the elements start.
    pub(crate) data_offset: u64,
}

impl Header {
    /// Reads the header of a file from its start.
    pub(crate) fn read(from: &mut impl Read) -> Result<Self, Malformed> {
        let mut start = [0; 8];
        fill(from, &mut start)?;
        let [magic @ .., major, minor] = start;
        if magic != *MAGIC {
            return Err(Malformed::new("it does not start with the magic string of .npy files"));
        }
        let length_bytes = match (major, minor) {
            (1, 0) => 2,
            (2 | 3, 0) => 4,
            _ => return Err(Malformed(format!("its format version {major}.{minor} is not known"))),
        };
        let mut length = [0; 4];
        fill(from, &mut length[..length_bytes])?;
        let length = u32::from_le_bytes(length);
        if length > TEXT_BYTES_MAX {
            return Err(Malformed(format!("its header is {length} bytes long, more than {TEXT_BYTES_MAX}")));
        }
        let mut text = vec![0; length as usize];
        fill(from, &mut text)?;
        let text = std::str::from_utf8(&text).map_err(|_| Malformed::new("its header is no text"))?;
        let data_offset = (start.len() + length_bytes + text.len()) as u64;
        let header = Parser { rest: text }.header(data_offset)?;
        if header.len_bytes().is_none() {
            return Err(Malformed(format!(
                "an array of shape {} has more bytes than can be counted",
                header.shown_shape()
            )));
        }
        Ok(header)
    }

    /// The same header as a file's first bytes, padded to a multiple of 64.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let fortran = if self.fortran_order { "True" } else { "False" };
        let dictionary = format!(
            "{{'descr': '{}', 'fortran_order': {fortran}, 'shape': {}, }}",
            self.descr(),
            self.shown_shape()
        );
        // Magic, version, a length of two bytes, the text, its newline. The reader's bound on the text holds here too.
        let unpadded = MAGIC.len() + 2 + 2 + dictionary.len() + 1;
        let padding = unpadded.next_multiple_of(64) - unpadded;
        let length = u16::try_from(dictionary.len() + padding + 1).expect("a header that was read is short");
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend(length.to_le_bytes());
        bytes.extend(dictionary.as_bytes());
        bytes.extend(std::iter::repeat_n(b' ', padding));
        bytes.push(b'\n');
        bytes
    }

    /// The number of elements.
    pub(crate) fn elements(&self) -> Option<u64> {
        // An empty dimension empties the array, however long the others are.
        if self.shape.contains(&0) {
            return Some(0);
        }
        self.shape.iter().try_fold(1u64, |product, length| product.checked_mul(*length))
    }

    /// Their size in bytes; `None` if it is beyond 63 bits.
    pub(crate) fn len_bytes(&self) -> Option<u64> {
        let bytes = self.elements()?.checked_mul(self.dtype.size_bytes() as u64)?;
        i64::try_from(bytes).is_ok().then_some(bytes)
    }

    /// The type as .npy spells it: `<f4`.
    pub(crate) fn descr(&self) -> String {
        let code = CODES.iter().find(|(_, dtype)| *dtype == self.dtype).map_or("?", |(code, _)| code);
        let order = match (self.dtype.size_bytes(), self.big_endian) {
            (1, _) => '|',
            (_, true) => '>',
            (_, false) => '<',
        };
        format!("{order}{code}")
    }

    /// The shape as Python shows it: `(3,)`.
    pub(crate) fn shown_shape(&self) -> String {
        match self.shape.as_slice() {
            [one] => format!("({one},)"),
            shape => {
                let lengths: Vec<_> = shape.iter().map(u64::to_string).collect();
                format!("({})", lengths.join(", "))
            }
        }
    }

    /// Whether elements at equal places in the files have equal indices, for arrays of equal shape.
    pub(crate) fn same_order(&self, other: &Self) -> bool {
        let orders_differ = self.shape.iter().filter(|length| **length > 1).count() > 1;
        self.fortran_order == other.fortran_order || !orders_differ
    }

    /// Turns elements between the file's byte order and this machine's, in place.
    pub(crate) fn swap_to_native(&self, bytes: &mut [u8]) {
        let size = self.dtype.size_bytes();
        if size > 1 && self.big_endian != cfg!(target_endian = "big") {
            bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
    }
}

/// What is wrong with a file, about "it".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(String);

impl Malformed {
    fn new(what: &str) -> Self {
        Self(what.to_owned())
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

fn fill(from: &mut impl Read, bytes: &mut [u8]) -> Result<(), Malformed> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Malformed::new("it ends within its header"),
        _ => Malformed(format!("its header cannot be read: {error}")),
    })
}

/// A header's text, taken apart from the front.
struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn header(mut self, data_offset: u64) -> Result<Header, Malformed> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.expect("{")?;
        while !self.take("}") {
            let key = self.string()?;
            self.expect(":")?;
            let twice = match key {
                "descr" => descr.replace(self.descr()?).is_some(),
                "fortran_order" => fortran_order.replace(self.truth()?).is_some(),
                "shape" => shape.replace(self.shape()?).is_some(),
                _ => {
                    return Err(Malformed(format!(
                        "its header has a key that is not known, `{}`",
                        short(key)
                    )));
                }
            };
            if twice {
                return Err(Malformed(format!("its header has `{key}` twice")));
            }
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        if !self.rest.trim_matches([' ', '\n', '\0']).is_empty() {
            return Err(Malformed(format!("its header goes on after its end with `{}`", short(self.rest))));
        }
        let missing = |key: &str| Malformed(format!("its header has no `{key}`"));
        let (dtype, big_endian) = descr.ok_or_else(|| missing("descr"))?;
        let fortran_order = fortran_order.ok_or_else(|| missing("fortran_order"))?;
        let shape = shape.ok_or_else(|| missing("shape"))?;
        Ok(Header { dtype, big_endian, fortran_order, shape, data_offset })
    }

    /// The type, and whether it is big endian.
    fn descr(&mut self) -> Result<(DType, bool), Malformed> {
        self.skip_blanks();
        if self.rest.starts_with('[') {
            return Err(Malformed(format!("its elements are records; only {SUPPORTED} are supported")));
        }
        let descr = self.string()?;
        let unsupported = || {
            Malformed(format!(
                "its elements are of type `{}`, which is not supported; {SUPPORTED} are",
                short(descr)
            ))
        };
        let order = descr.chars().next().filter(|order| "<>=|".contains(*order)).ok_or_else(unsupported)?;
        let code = &descr[1..];
        let dtype = CODES.iter().find(|(known, _)| *known == code).ok_or_else(unsupported)?.1;
        match (order, dtype.size_bytes()) {
            ('|', 2..) => Err(unsupported()),
            (_, 1) => Ok((dtype, false)),
            ('=', _) => Ok((dtype, cfg!(target_endian = "big"))),
            _ => Ok((dtype, order == '>')),
        }
    }

    fn truth(&mut self) -> Result<bool, Malformed> {
        if self.take("True") {
            return Ok(true);
        }
        self.expect("False").map(|()| false)
    }

    fn shape(&mut self) -> Result<Vec<u64>, Malformed> {
        let mut shape = Vec::new();
        self.expect("(")?;
        while !self.take(")") {
            if shape.len() == DIMENSIONS_MAX {
                return Err(Malformed(format!("its array has more than {DIMENSIONS_MAX} dimensions")));
            }
            shape.push(self.length()?);
            if !self.take(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(shape)
    }

    fn length(&mut self) -> Result<u64, Malformed> {
        self.skip_blanks();
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        let length = digits
            .parse()
            .map_err(|_| Malformed(format!("its shape has no length at `{}`", short(self.rest))))?;
        // Python 2 wrote long integers as `3L`.
        self.rest = rest.strip_prefix('L').unwrap_or(rest);
        Ok(length)
    }

    fn string(&mut self) -> Result<&'a str, Malformed> {
        self.skip_blanks();
        let quote = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"'));
        let inside = quote.and_then(|quote| self.rest[1..].split_once(quote));
        let (string, rest) =
            inside.ok_or_else(|| Malformed(format!("its header has no string at `{}`", short(self.rest))))?;
        self.rest = rest;
        Ok(string)
    }

    fn expect(&mut self, token: &str) -> Result<(), Malformed> {
        if self.take(token) {
            return Ok(());
        }
        Err(Malformed(format!("its header has no `{token}` at `{}`", short(self.rest))))
    }

    fn take(&mut self, token: &str) -> bool {
        self.skip_blanks();
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\n', '\t']);
    }
}

/// The start of a text that may be long and strange, for messages.
fn short(text: &str) -> String {
    text.chars().take(24).flat_map(char::escape_debug).collect()
}

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The longest header that is read, in bytes; a header of plain numbers with 32 dimensions stays far below.
const TEXT_BYTES_MAX: u32 = 10_000;

/// As many dimensions as NumPy allows.
const DIMENSIONS_MAX: usize = 64;

const CODES: [(&str, DType); 6] = [
    ("f4", DType::F32),
    ("f8", DType::F64),
    ("i4", DType::I32),
    ("i8", DType::I64),
    ("u1", DType::U8),
    ("f2", DType::F16),
];

const SUPPORTED: &str = "f2, f4, f8, i4, i8 and u1";

#[cfg(test)]
mod tests {
    use super::*;

    fn file(version: u8, text: &str) -> Vec<u8> {
        let mut bytes = [MAGIC.as_slice(), &[version, 0]].concat();
        let length = u32::try_from(text.len()).unwrap().to_le_bytes();
        bytes.extend(&length[..if version == 1 { 2 } else { 4 }]);
        bytes.extend(text.as_bytes());
        bytes
    }

    fn read(text: &str) -> Result<Header, Malformed> {
        Header::read(&mut file(1, text).as_slice())
    }

    fn wrong(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    #[test]
    fn headers_of_all_versions_and_spellings_are_read() {
        let text = "{'descr': '>f8', 'fortran_order': True, 'shape': (3, 4), }   \n";
        for version in [1, 2, 3] {
            let header = Header::read(&mut file(version, text).as_slice()).unwrap();
            assert_eq!((header.dtype, header.big_endian, header.fortran_order), (DType::F64, true, true));
            assert_eq!(header.shape, [3, 4]);
            assert_eq!(header.data_offset, file(version, text).len() as u64);
        }
        let other = read("{\"shape\":(7L,),\"fortran_order\":False,\"descr\":\"|u1\"}").unwrap();
        assert_eq!(
            (other.dtype, other.shape.as_slice(), other.elements()),
            (DType::U8, [7].as_slice(), Some(7))
        );
        let zero = read("{'descr': '<i4', 'fortran_order': False, 'shape': (), }").unwrap();
        assert_eq!((zero.elements(), zero.len_bytes()), (Some(1), Some(4)));
        let empty = read("{'descr': '<i4', 'fortran_order': False, 'shape': (9, 0, 18446744073709551615), }")
            .unwrap();
        assert_eq!(empty.len_bytes(), Some(0));
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (code, dtype) in CODES {
            for shape in [vec![], vec![0], vec![5], vec![2, 3], vec![1; 32]] {
                for (big_endian, fortran_order) in [(false, false), (true, true)] {
                    let big_endian = big_endian && dtype.size_bytes() > 1;
                    let header =
                        Header { dtype, big_endian, fortran_order, shape: shape.clone(), data_offset: 0 };
                    let bytes = header.to_bytes();
                    assert_eq!(bytes.len() % 64, 0);
                    let again = Header::read(&mut bytes.as_slice()).unwrap();
                    assert_eq!(again, Header { data_offset: bytes.len() as u64, ..header });
                    assert!(again.descr().ends_with(code));
                }
            }
        }
    }

    #[test]
    fn malformed_headers_are_refused_in_words() {
        assert!(wrong("{'descr': '<f4', 'fortran_order': False, }").contains("no `shape`"));
        assert!(wrong("{'descr': '<f4', 'descr': '<f4', }").contains("twice"));
        assert!(
            wrong("{'descr': '<f4', 'fortran_order': Perhaps, 'shape': (), }")
                .contains("`False` at `Perhaps")
        );
        assert!(
            wrong("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }").contains("no length at `-1")
        );
        assert!(wrong("{'descr': '<f4', 'fortran_order': False, 'shape': (1,) }x").contains("goes on"));
        assert!(wrong("{'shape': (99999999999999999999,)}").contains("no length"));
        assert!(wrong("{'colour': 'red'}").contains("`colour`"));
        assert!(wrong("{'descr").contains("no string"));
        assert!(wrong("").contains("no `{`"));
        let huge = "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }";
        assert!(wrong(huge).contains("more bytes than can be counted"));
        let deep = format!("{{'shape': {}", "(".repeat(9_000));
        assert!(wrong(&deep).contains("no length"));
        let long = format!("{{'shape': ({})", "1,".repeat(4_000));
        assert!(wrong(&long).contains("64 dimensions"));
    }

    #[test]
    fn types_that_cannot_be_reduced_are_refused() {
        for descr in ["'<f16'", "'<c8'", "'|S7'", "'|O'", "'<u4'", "'|b1'", "'<i2'", "'|f4'", "''", "'ä4'"] {
            let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}");
            assert!(wrong(&text).contains("not supported"), "{descr}");
        }
        let records = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }";
        assert!(wrong(records).contains("records"));
    }

    #[test]
    fn files_that_end_early_or_are_none_are_refused() {
        let whole = file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (), }");
        for end in 0..whole.len() {
            assert!(Header::read(&mut &whole[..end]).is_err(), "{end} bytes");
        }
        assert!(
            Header::read(&mut b"PK\x03\x04 a zip file".as_slice()).unwrap_err().to_string().contains("magic")
        );
        assert!(Header::read(&mut file(9, "{}").as_slice()).unwrap_err().to_string().contains("version 9.0"));
        let long = [MAGIC.as_slice(), &[2, 0], &u32::MAX.to_le_bytes()].concat();
        assert!(
            Header::read(&mut long.as_slice()).unwrap_err().to_string().contains("4294967295 bytes long")
        );
    }

    #[test]
    fn orders_differ_only_where_two_dimensions_do() {
        let header = |fortran_order, shape: &[u64]| Header {
            dtype: DType::U8,
            big_endian: false,
            fortran_order,
            shape: shape.to_vec(),
            data_offset: 0,
        };
        assert!(header(true, &[5]).same_order(&header(false, &[5])));
        assert!(header(true, &[1, 5, 1]).same_order(&header(false, &[1, 5, 1])));
        assert!(!header(true, &[2, 5]).same_order(&header(false, &[2, 5])));
        assert!(header(true, &[2, 5]).same_order(&header(true, &[2, 5])));
    }
}
