//! Headers of `.npy` files, versions 1.0 to 3.0: a small strict parser and a writer.
//!
//! The header is a Python dict literal with exactly the keys `descr`, `fortran_order` and
//! `shape` (NumPy's format specification). Pickled objects and structured types are refused;
//! nothing is ever evaluated.

use std::sync::Arc;

use super::array::{Array, Source};
use super::element::Element;
use super::{FileError, rows};
use crate::limits::NPY_HEADER_BYTES_MAX;

/// First bytes of every npy file.
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// What a header says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Header {
    /// Element type, as written: `<f4`.
    descr: String,
    /// First index fastest.
    fortran: bool,
    /// Lengths of the axes.
    shape: Vec<u64>,
    /// Where the elements start.
    data_offset: u64,
}

/// The array of a file, `bytes` of `source` from `offset` on (all of it, or a member of an npz
/// file), with its size checked.
///
/// # Errors
/// [`FileError::Malformed`]; pickled objects are [`FileError::Unsuitable`].
pub(super) fn array(source: &Arc<Source>, offset: u64, bytes: u64) -> Result<Array, FileError> {
    let path = &source.path;
    let malformed = |why: String| FileError::malformed(path, "npy", why);
    if bytes < 12 {
        return Err(malformed(format!("{bytes} B are less than a header")));
    }
    let end = header_end(&source.read_array(offset)?).map_err(malformed)?;
    if end > bytes {
        let why = format!("its header ends at {end}, the file at {bytes} B");
        return Err(malformed(why));
    }
    let mut start = vec![0; end as usize]; // bounded by NPY_HEADER_BYTES_MAX
    source.read(&mut start, offset)?;
    let header = parse(&start).map_err(malformed)?;
    if header.descr.contains('O') {
        let why = "it holds pickled Python objects, which are never read: save numbers";
        return Err(FileError::unsuitable(path, why));
    }
    check_size(&header, bytes).map_err(malformed)?;
    let (element, swap) = Element::of_npy(&header.descr);
    Ok(Array {
        name: rows::VALUES.into(),
        element,
        written: header.descr,
        shape: header.shape,
        fortran: header.fortran,
        swap,
        source: Arc::clone(source),
        offset: offset + header.data_offset,
    })
}

/// Checks that the elements are as many bytes as the header says. The element's size is the
/// number that ends its descr; what has none is no element that is ever read.
fn check_size(header: &Header, bytes: u64) -> Result<(), String> {
    let element = header.descr.get(2..).and_then(|n| n.parse::<u64>().ok());
    let Some(element) = element else {
        return Ok(());
    };
    let want = header
        .shape
        .iter()
        .try_fold(element, |product, &axis| product.checked_mul(axis))
        .and_then(|bytes| bytes.checked_add(header.data_offset))
        .ok_or_else(|| format!("{:?} has no size in 64 bits", header.shape))?;
    if want == bytes {
        return Ok(());
    }
    Err(format!(
        "its header describes {want} B, the file has {bytes} B"
    ))
}

/// How many bytes of a file's start hold its header, from the first 12 of them.
///
/// # Errors
/// What is wrong, as part of an error line.
fn header_end(start: &[u8; 12]) -> Result<u64, String> {
    if &start[..6] != MAGIC {
        return Err("it does not start with the npy magic".into());
    }
    let (fixed, length) = match (start[6], start[7]) {
        (1, 0) => (10, u32::from(u16::from_le_bytes([start[8], start[9]]))),
        (2 | 3, 0) => {
            let length = u32::from_le_bytes([start[8], start[9], start[10], start[11]]);
            (12, length)
        }
        (major, minor) => {
            return Err(format!(
                "format version {major}.{minor} is unknown; known: 1.0, 2.0, 3.0"
            ));
        }
    };
    if length > NPY_HEADER_BYTES_MAX {
        return Err(format!(
            "a header of {length} B is over the limit of {NPY_HEADER_BYTES_MAX} B"
        ));
    }
    Ok(fixed + u64::from(length))
}

/// Parses the first [`header_end`] bytes of a file.
///
/// # Errors
/// What is wrong, as part of an error line.
fn parse(start: &[u8]) -> Result<Header, String> {
    let fixed = if start[6] == 1 { 10 } else { 12 };
    let text = start
        .get(fixed..)
        .and_then(|text| std::str::from_utf8(text).ok());
    let text = text.ok_or("its header is not text")?;
    let mut header = Literal { rest: text }.dict()?;
    header.data_offset = start.len() as u64;
    Ok(header)
}

/// The header of a C-ordered array, padded so that the elements start at a multiple of 64 B.
pub(super) fn write(descr: &str, shape: &[u64]) -> Vec<u8> {
    let axes: Vec<String> = shape.iter().map(u64::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let dict = format!(
        "{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}{comma}), }}",
        axes.join(", ")
    );
    let padded = (10 + dict.len() + 1).next_multiple_of(64) - 10;
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&[1, 0]);
    let length = u16::try_from(padded).expect("a descr and a few axes take under 64 KiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(dict.as_bytes());
    out.resize(10 + padded - 1, b' ');
    out.push(b'\n');
    out
}

/// The few Python literals that a header may hold.
struct Literal<'a> {
    rest: &'a str,
}

impl<'a> Literal<'a> {
    fn dict(&mut self) -> Result<Header, String> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.eat('}') {
            let key = self.string()?;
            self.expect(':')?;
            let twice = match key {
                "descr" => descr.replace(self.descr()?).is_some(),
                "fortran_order" => fortran.replace(self.bool()?).is_some(),
                "shape" => shape.replace(self.shape()?).is_some(),
                other => return Err(format!("its header has an unknown key '{other}'")),
            };
            if twice {
                return Err(format!("its header has '{key}' twice"));
            }
            if !self.eat(',') {
                self.expect('}')?;
                break;
            }
        }
        if !self.rest.trim().is_empty() {
            return Err("its header goes on after the dict".into());
        }
        Ok(Header {
            descr: descr.ok_or("its header has no 'descr'")?,
            fortran: fortran.ok_or("its header has no 'fortran_order'")?,
            shape: shape.ok_or("its header has no 'shape'")?,
            data_offset: 0,
        })
    }

    fn descr(&mut self) -> Result<String, String> {
        if self.rest.trim_start().starts_with('[') {
            return Err("it holds a structured type; one plain number type is wanted".into());
        }
        self.string().map(str::to_owned)
    }

    fn bool(&mut self) -> Result<bool, String> {
        self.rest = self.rest.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err("'fortran_order' is neither True nor False".into())
    }

    fn shape(&mut self) -> Result<Vec<u64>, String> {
        self.expect('(')?;
        let mut shape = Vec::new();
        while !self.eat(')') {
            shape.push(self.number()?);
            if !self.eat(',') {
                // `(3)` is a number in Python, not a tuple.
                if shape.len() == 1 {
                    return Err("its 'shape' is not a tuple".into());
                }
                self.expect(')')?;
                break;
            }
        }
        Ok(shape)
    }

    fn number(&mut self) -> Result<u64, String> {
        self.rest = self.rest.trim_start();
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        digits
            .parse()
            .map_err(|_| "an axis of its 'shape' is no number of 64 bits".into())
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let rest = self.rest.trim_start();
        let quote = rest
            .chars()
            .next()
            .filter(|c| matches!(c, '\'' | '"'))
            .ok_or("its header is not a dict of strings")?;
        let (text, rest) = rest[1..]
            .split_once(quote)
            .ok_or("its header has a string without an end")?;
        if text.contains('\\') {
            return Err("its header has an escaped string".into());
        }
        self.rest = rest;
        Ok(text)
    }

    fn eat(&mut self, wanted: char) -> bool {
        let rest = self.rest.trim_start();
        match rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        if self.eat(wanted) {
            return Ok(());
        }
        Err(format!("its header lacks a '{wanted}'"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dict(text: &str) -> Result<Header, String> {
        Literal { rest: text }.dict()
    }

    /// B086: key order, spaces and quotes are free.
    #[test]
    fn headers_in_any_order_and_spacing() {
        let want = Header {
            descr: "<f4".into(),
            fortran: false,
            shape: vec![3, 4],
            data_offset: 0,
        };
        for text in [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }",
            "{'shape':(3,4),'descr':'<f4','fortran_order':False}",
            "  { \"shape\" : ( 3 , 4 , ) , \"fortran_order\" :False,'descr' : \"<f4\" } \n",
        ] {
            assert_eq!(dict(text), Ok(want.clone()), "{text}");
        }
        assert_eq!(
            dict("{'descr':'<f4','fortran_order':True,'shape':()}").map(|h| h.shape),
            Ok(vec![])
        );
        assert_eq!(
            dict("{'descr':'<f4','fortran_order':True,'shape':(7,)}").map(|h| h.shape),
            Ok(vec![7])
        );
    }

    #[test]
    fn what_is_no_header_is_refused() {
        for text in [
            "",
            "{",
            "{}",
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, -4)}",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': (3, 4)}",
            "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), 'x': 1}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)} import os",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 4)}",
        ] {
            assert!(dict(text).is_err(), "{text}");
        }
    }

    #[test]
    fn written_headers_parse_and_align() {
        for shape in [vec![5], vec![0, 16], vec![u64::MAX, 1 << 40]] {
            let bytes = write("<u8", &shape);
            assert_eq!(bytes.len() % 64, 0);
            let start: [u8; 12] = bytes[..12].try_into().expect("12");
            assert_eq!(header_end(&start), Ok(bytes.len() as u64));
            let header = parse(&bytes).expect("own header");
            assert_eq!((header.shape, header.descr.as_str()), (shape, "<u8"));
        }
    }
}
