//! Rows as JSON and as text, and back: every value reads back to the same bits.

use mneme_proto::numeric::{narrow, widen};
use mneme_proto::schema::{Dtype, RowSchema, StatePart};
use serde::ser::{Serialize, SerializeSeq, Serializer};
use serde_json::value::RawValue;

use crate::limits::VALUES_SHOWN_MAX;

/// The values of one row, planes concatenated in schema order.
#[derive(Debug, Clone, Copy)]
pub struct RowValues<'a> {
    /// What the bytes are.
    pub schema: &'a RowSchema,
    /// `row_bytes` of them, little-endian.
    pub bytes: &'a [u8],
    /// Write bits as hex strings instead of numbers.
    pub bits: bool,
}

/// A part of a row's state.
#[derive(Debug, Clone, Copy)]
pub struct StateValues<'a> {
    /// What the bytes are.
    pub part: StatePart,
    /// 4 B an element, little-endian.
    pub bytes: &'a [u8],
    /// Write bits as hex strings instead of numbers.
    pub bits: bool,
}

/// One element of a row or a state.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Element {
    /// Of a float dtype, by its bits.
    Float(Dtype, u32),
    /// Of i8 or u8.
    Whole(Dtype, u8),
    /// A count of a state.
    Count(u32),
}

impl RowValues<'_> {
    fn elements(&self) -> impl Iterator<Item = Element> {
        let mut rest = self.bytes;
        self.schema.planes.iter().flat_map(move |plane| {
            let (own, after) = rest.split_at(plane.bytes());
            rest = after;
            let dtype = plane.dtype;
            let chunks = own.chunks_exact(dtype.bytes() as usize);
            chunks.map(move |chunk| match dtype.is_float() {
                true => Element::Float(dtype, bits_of(chunk)),
                false => Element::Whole(dtype, chunk[0]),
            })
        })
    }

    /// The first values and how many more there are, for people.
    #[must_use]
    pub fn text(&self) -> String {
        text(self.elements(), self.schema.dim() as usize, self.bits)
    }
}

impl StateValues<'_> {
    fn elements(&self) -> impl Iterator<Item = Element> {
        let count = self.part.count;
        let chunks = self.bytes.chunks_exact(4);
        chunks.map(move |chunk| match count {
            true => Element::Count(bits_of(chunk)),
            false => Element::Float(Dtype::F32, bits_of(chunk)),
        })
    }

    /// The first values and how many more there are, for people.
    #[must_use]
    pub fn text(&self) -> String {
        text(self.elements(), self.bytes.len() / 4, self.bits)
    }
}

/// Up to four bytes, little-endian.
fn bits_of(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |bits, b| bits << 8 | u32::from(*b))
}

/// The value of a float element.
fn value_of(dtype: Dtype, bits: u32) -> f32 {
    let mut value = [0.0];
    widen(
        dtype,
        &bits.to_le_bytes()[..dtype.bytes() as usize],
        &mut value,
    );
    value[0]
}

/// The value of an i8 or u8 element.
fn whole_of(dtype: Dtype, byte: u8) -> i16 {
    match dtype {
        Dtype::I8 => i16::from(byte as i8),
        _ => i16::from(byte),
    }
}

fn text(elements: impl Iterator<Item = Element>, count: usize, bits: bool) -> String {
    let shown: Vec<String> = elements
        .take(VALUES_SHOWN_MAX)
        .map(|element| match element {
            element if bits => hex(element),
            Element::Float(dtype, bits) => number(value_of(dtype, bits)),
            Element::Whole(dtype, byte) => whole_of(dtype, byte).to_string(),
            Element::Count(count) => count.to_string(),
        })
        .collect();
    let rest = count - shown.len();
    let more = if rest > 0 {
        format!(" and {rest} more")
    } else {
        String::new()
    };
    format!("{}{more}", shown.join(" "))
}

/// A number for people: the shortest decimal that reads back to the same bits.
#[must_use]
pub fn number(value: f32) -> String {
    match special(value) {
        Some(word) => word.to_owned(),
        None => {
            let text = format!("{value:?}");
            text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
        }
    }
}

/// `0x3f800000`: the element's bits, most significant first.
fn hex(element: Element) -> String {
    let (bits, bytes) = match element {
        Element::Float(dtype, bits) => (bits, dtype.bytes()),
        Element::Whole(dtype, byte) => (byte.into(), dtype.bytes()),
        Element::Count(count) => (count, 4),
    };
    format!("{bits:#0width$x}", width = 2 + 2 * bytes as usize)
}

/// The word for a value that JSON has no number for.
fn special(value: f32) -> Option<&'static str> {
    if value.is_nan() {
        Some("NaN")
    } else if value == f32::INFINITY {
        Some("Infinity")
    } else if value == f32::NEG_INFINITY {
        Some("-Infinity")
    } else {
        None
    }
}

impl Serialize for RowValues<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serialize(self.elements(), self.bits, to)
    }
}

impl Serialize for StateValues<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serialize(self.elements(), self.bits, to)
    }
}

fn serialize<S: Serializer>(
    elements: impl Iterator<Item = Element>,
    bits: bool,
    to: S,
) -> Result<S::Ok, S::Error> {
    let mut seq = to.serialize_seq(None)?;
    for element in elements {
        match element {
            element if bits => seq.serialize_element(&hex(element))?,
            Element::Whole(dtype, byte) => seq.serialize_element(&whole_of(dtype, byte))?,
            Element::Count(count) => seq.serialize_element(&count)?,
            // Written as f32: the shortest decimal that reads back to the same bits.
            Element::Float(dtype, bits) => {
                let value = value_of(dtype, bits);
                match special(value) {
                    Some(word) => seq.serialize_element(word)?,
                    None => seq.serialize_element(&value)?,
                }
            }
        }
    }
    seq.end()
}

/// Reads `[[..],[..]]`, one list per key, as rows of `schema`. Numbers, the words `NaN`,
/// `Infinity` and `-Infinity`, and bits as `pull --bits` shows them are taken.
///
/// # Errors
/// A line that names the row, the element and what is wrong with it.
pub fn parse_rows(json: &str, schema: &RowSchema) -> Result<Vec<Vec<u8>>, String> {
    let rows: Vec<Vec<&RawValue>> = serde_json::from_str(json)
        .map_err(|error| format!("it is not a JSON list of lists: {error}"))?;
    let dim = schema.dim() as usize;
    let parse_row = |(at, row): (usize, &Vec<&RawValue>)| {
        if row.len() != dim {
            let found = row.len();
            return Err(format!(
                "row {at} has {found} values, the table wants {dim}"
            ));
        }
        let dtypes = schema
            .planes
            .iter()
            .flat_map(|plane| std::iter::repeat_n(plane.dtype, plane.width as usize));
        let mut bytes = Vec::with_capacity(schema.row_bytes() as usize);
        for (element, (token, dtype)) in row.iter().zip(dtypes).enumerate() {
            parse_element(token.get(), dtype, &mut bytes)
                .map_err(|why| format!("row {at}, element {element}: {why}"))?;
        }
        Ok(bytes)
    };
    rows.iter().enumerate().map(parse_row).collect()
}

/// Reads one element. Numbers of float dtypes are read as f32 and rounded from there to nearest
/// even, as every f32 is that reaches the table.
fn parse_element(token: &str, dtype: Dtype, out: &mut Vec<u8>) -> Result<(), String> {
    let bad = || format!("{token} is no {dtype}");
    let quoted = token.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
    let size = dtype.bytes() as usize;
    if let Some(digits) = quoted.and_then(|word| word.strip_prefix("0x")) {
        let bits = u32::from_str_radix(digits, 16).map_err(|_| bad())?;
        let bytes = bits.to_le_bytes();
        if bytes[size..].iter().any(|b| *b != 0) {
            return Err(format!("{token} has more bits than {dtype}"));
        }
        out.extend_from_slice(&bytes[..size]);
        return Ok(());
    }
    match dtype {
        Dtype::U8 => out.push(token.parse().map_err(|_| bad())?),
        Dtype::I8 => out.push(token.parse::<i8>().map_err(|_| bad())? as u8),
        _ => {
            let value = match quoted {
                Some("NaN") => f32::NAN,
                Some("Infinity") => f32::INFINITY,
                Some("-Infinity") => f32::NEG_INFINITY,
                Some(_) => return Err(bad()),
                // From the decimal to f32 at once: by way of f64 it would be rounded twice.
                None => match token.parse::<f32>() {
                    Ok(value) if value.is_finite() => value,
                    Ok(_) => return Err(format!("{token} is out of range of f32")),
                    Err(_) => return Err(bad()),
                },
            };
            let at = out.len();
            out.resize(at + size, 0);
            narrow(dtype, &[value], &mut out[at..]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mneme_proto::schema::Plane;
    use proptest::prelude::*;

    use super::*;

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn json(schema: &RowSchema, bytes: &[u8], bits: bool) -> String {
        serde_json::to_string(&RowValues {
            schema,
            bytes,
            bits,
        })
        .expect("JSON")
    }

    #[test]
    fn values_are_shortest_and_specials_are_words() {
        let schema = RowSchema::single(Dtype::F32, 8);
        let row = [
            0.1,
            -0.0,
            1e-45,
            16_777_216.0,
            f32::MAX,
            f32::NAN,
            f32::INFINITY,
            -f32::INFINITY,
        ];
        let bytes = f32s(&row);
        assert_eq!(
            json(&schema, &bytes, false),
            r#"[0.1,-0.0,1e-45,16777216.0,3.4028235e+38,"NaN","Infinity","-Infinity"]"#
        );
        assert_eq!(
            json(&schema, &bytes[..32], true),
            concat!(
                r#"["0x3dcccccd","0x80000000","0x00000001","0x4b800000","#,
                r#""0x7f7fffff","0x7fc00000","0x7f800000","0xff800000"]"#
            )
        );
    }

    #[test]
    fn planes_are_concatenated_in_schema_order() {
        let plane = |name: &str, dtype, width| Plane {
            name: name.into(),
            dtype,
            width,
        };
        let schema = RowSchema {
            planes: vec![plane("codes", Dtype::U8, 2), plane("scale", Dtype::F32, 1)],
        };
        let bytes = [&[7, 255][..], &f32s(&[0.5])].concat();
        assert_eq!(json(&schema, &bytes, false), "[7,255,0.5]");
        assert_eq!(
            json(&schema, &bytes, true),
            r#"["0x07","0xff","0x3f000000"]"#
        );
        let values = RowValues {
            schema: &schema,
            bytes: &bytes,
            bits: false,
        };
        assert_eq!(values.text(), "7 255 0.5");
        assert_eq!(parse_rows("[[7, 255, 0.5]]", &schema), Ok(vec![bytes]));
    }

    #[test]
    fn long_rows_are_cut_for_people() {
        let schema = RowSchema::single(Dtype::U8, 100);
        let values = RowValues {
            schema: &schema,
            bytes: &[1; 100],
            bits: false,
        };
        assert_eq!(values.text(), "1 1 1 1 1 1 1 1 and 92 more");
    }

    #[test]
    fn refused_values_are_named() {
        let float = RowSchema::single(Dtype::F32, 2);
        let byte = RowSchema::single(Dtype::U8, 2);
        for (text, schema, says) in [
            ("[1,2]", &float, "not a JSON list of lists"),
            (
                "[[1,2],[3]]",
                &float,
                "row 1 has 1 values, the table wants 2",
            ),
            (
                "[[1,1e39]]",
                &float,
                "row 0, element 1: 1e39 is out of range of f32",
            ),
            (r#"[[1,"nan"]]"#, &float, "\"nan\" is no f32"),
            ("[[1,null]]", &float, "null is no f32"),
            (r#"[[1,"0xzz"]]"#, &float, "is no f32"),
            ("[[1,256]]", &byte, "row 0, element 1: 256 is no u8"),
            ("[[1,-1]]", &byte, "-1 is no u8"),
            ("[[1,0.5]]", &byte, "0.5 is no u8"),
            (r#"[[1,"0x100"]]"#, &byte, "has more bits than u8"),
        ] {
            let error = parse_rows(text, schema).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
        assert_eq!(parse_rows("[]", &float), Ok(vec![]));
    }

    /// `0.1 + 2^-30`-like decimals next to the middle of two f32 are rounded once.
    #[test]
    fn decimals_are_rounded_once() {
        let schema = RowSchema::single(Dtype::F32, 1);
        // Just above the middle of 1 and its successor; as f64 it is the middle itself.
        let text = "[[1.00000005960464477539062500000001]]";
        let rows = parse_rows(text, &schema).expect("a number");
        assert_eq!(rows, [0x3f80_0001u32.to_le_bytes()]);
    }

    /// Every dtype: numbers, bits, and back.
    #[test]
    fn every_dtype_is_shown_and_read() {
        for (dtype, bytes, shown, bits) in [
            (Dtype::F16, &[0x00, 0xC0][..], "-2.0", "0xc000"),
            (Dtype::Bf16, &[0xCD, 0x3D], "0.100097656", "0x3dcd"),
            (Dtype::F8e4m3, &[0x7E], "448.0", "0x7e"),
            (Dtype::F8e5m2, &[0x01], "0.000015258789", "0x01"),
            (Dtype::I8, &[0x80], "-128", "0x80"),
            (Dtype::U8, &[0x80], "128", "0x80"),
        ] {
            let schema = RowSchema::single(dtype, 1);
            assert_eq!(json(&schema, bytes, false), format!("[{shown}]"));
            assert_eq!(json(&schema, bytes, true), format!("[\"{bits}\"]"));
            for as_bits in [false, true] {
                let text = format!("[{}]", json(&schema, bytes, as_bits));
                assert_eq!(parse_rows(&text, &schema), Ok(vec![bytes.to_vec()]));
            }
        }
        let schema = RowSchema::single(Dtype::Bf16, 1);
        let rounded = parse_rows("[[0.26911]]", &schema).expect("a number");
        assert_eq!(rounded, [[0x8A, 0x3E]]);
        let count = StateValues {
            part: StatePart {
                name: "step",
                elements: 1,
                count: true,
            },
            bytes: &[3, 0, 0, 0],
            bits: false,
        };
        assert_eq!(serde_json::to_string(&count).expect("JSON"), "[3]");
        assert_eq!(count.text(), "3");
    }

    proptest! {
        /// Any bits survive the way to JSON and back (a NaN's payload by `--bits` only).
        #[test]
        fn every_value_reads_back(bits in any::<u32>()) {
            let schema = RowSchema::single(Dtype::F32, 1);
            let bytes = bits.to_le_bytes().to_vec();
            for as_bits in [false, true] {
                let text = format!("[{}]", json(&schema, &bytes, as_bits));
                let read = parse_rows(&text, &schema).expect("own text");
                let nan = f32::from_bits(bits).is_nan() && !as_bits;
                prop_assert!(read == [bytes.clone()] || nan, "{}", text);
            }
        }
    }
}
