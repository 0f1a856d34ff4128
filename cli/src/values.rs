//! Rows as JSON and as text, and back: every value reads back to the same bits.

use mneme_proto::schema::{Dtype, RowSchema};
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

/// f32 vectors, such as a row's optimizer state.
#[derive(Debug, Clone, Copy)]
pub struct Floats<'a> {
    /// 4 B each, little-endian.
    pub bytes: &'a [u8],
    /// Write bits as hex strings instead of numbers.
    pub bits: bool,
}

/// One element of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Element {
    F32(f32),
    U8(u8),
}

impl RowValues<'_> {
    fn elements(&self) -> impl Iterator<Item = Element> {
        let mut rest = self.bytes;
        self.schema.planes.iter().flat_map(move |plane| {
            let (own, after) = rest.split_at(plane.dtype.bytes() as usize * plane.width as usize);
            rest = after;
            let step = plane.dtype.bytes() as usize;
            own.chunks_exact(step).map(move |chunk| match plane.dtype {
                Dtype::F32 => Element::F32(float(chunk)),
                Dtype::U8 => Element::U8(chunk[0]),
            })
        })
    }

    /// The first values and how many more there are, for people.
    #[must_use]
    pub fn text(&self) -> String {
        text(self.elements(), self.schema.dim() as usize, self.bits)
    }
}

impl Floats<'_> {
    fn elements(&self) -> impl Iterator<Item = Element> {
        self.bytes.chunks_exact(4).map(|c| Element::F32(float(c)))
    }

    /// The first values and how many more there are, for people.
    #[must_use]
    pub fn text(&self) -> String {
        text(self.elements(), self.bytes.len() / 4, self.bits)
    }
}

fn float(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().expect("chunks of 4 B"))
}

fn text(elements: impl Iterator<Item = Element>, count: usize, bits: bool) -> String {
    let shown: Vec<String> = elements
        .take(VALUES_SHOWN_MAX)
        .map(|element| match element {
            element if bits => hex(element),
            Element::F32(value) => number(value),
            Element::U8(value) => value.to_string(),
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
    match element {
        Element::F32(value) => format!("{:#010x}", value.to_bits()),
        Element::U8(value) => format!("{value:#04x}"),
    }
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

impl Serialize for Floats<'_> {
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
            Element::U8(value) => seq.serialize_element(&value)?,
            // Written as f32: the shortest decimal that reads back to the same bits.
            Element::F32(value) => match special(value) {
                Some(word) => seq.serialize_element(word)?,
                None => seq.serialize_element(&value)?,
            },
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

fn parse_element(token: &str, dtype: Dtype, out: &mut Vec<u8>) -> Result<(), String> {
    let bad = || format!("{token} is no {}", dtype.word());
    let quoted = token.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
    let bits = quoted
        .and_then(|word| word.strip_prefix("0x"))
        .map(|digits| u32::from_str_radix(digits, 16).map_err(|_| bad()));
    match dtype {
        Dtype::U8 => {
            let value = match bits {
                Some(bits) => u8::try_from(bits?).map_err(|_| bad())?,
                None => token.parse().map_err(|_| bad())?,
            };
            out.push(value);
        }
        Dtype::F32 => {
            let value = match (bits, quoted) {
                (Some(bits), _) => f32::from_bits(bits?),
                (None, Some("NaN")) => f32::NAN,
                (None, Some("Infinity")) => f32::INFINITY,
                (None, Some("-Infinity")) => f32::NEG_INFINITY,
                (None, Some(_)) => return Err(bad()),
                // From the decimal to f32 at once: by way of f64 it would be rounded twice.
                (None, None) => match token.parse::<f32>() {
                    Ok(value) if value.is_finite() => value,
                    Ok(_) => return Err(format!("{token} is out of range of f32")),
                    Err(_) => return Err(bad()),
                },
            };
            out.extend_from_slice(&value.to_le_bytes());
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
            (r#"[[1,"0x100"]]"#, &byte, "is no u8"),
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
