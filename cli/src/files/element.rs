//! Element types as the formats write them, and which of them rows are made of.

use mneme_proto::schema::Dtype;

/// A dtype with its names in the formats: npy's `descr`, safetensors' `dtype`. numpy has no names
/// for bf16 and fp8: they are untyped bytes there, and `--dtype` says what they are.
const NAMES: [(Dtype, &str, &str); 7] = [
    (Dtype::F32, "<f4", "F32"),
    (Dtype::F16, "<f2", "F16"),
    (Dtype::Bf16, "<V2", "BF16"),
    (Dtype::F8e4m3, "<V1", "F8_E4M3"),
    (Dtype::F8e5m2, "<V1", "F8_E5M2"),
    (Dtype::I8, "|i1", "I8"),
    (Dtype::U8, "|u1", "U8"),
];

/// What an array's elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    /// A type that rows have.
    Row(Dtype),
    /// u64, or i64 taken as its two's complement: a type that keys have.
    Key,
    /// So many bytes without a type.
    Untyped(u32),
    /// A type that neither rows nor keys have.
    Other,
}

fn names(of: Dtype) -> &'static (Dtype, &'static str, &'static str) {
    let found = NAMES.iter().find(|names| names.0 == of);
    found.expect("NAMES has every dtype: a test counts them")
}

/// npy's `descr` of a dtype.
pub(super) fn npy_descr(of: Dtype) -> &'static str {
    names(of).1
}

/// safetensors' word for a dtype.
pub(super) fn safetensors_word(of: Dtype) -> &'static str {
    names(of).2
}

impl Element {
    /// The element of an npy `descr`, and whether its bytes are to be swapped.
    pub fn of_npy(descr: &str) -> (Self, bool) {
        let (order, kind) = match descr.split_at_checked(1) {
            Some((order @ ("<" | ">" | "=" | "|"), kind)) => (order, kind),
            _ => return (Self::Other, false),
        };
        let element = match kind {
            "u8" | "i8" => Self::Key,
            "V1" => Self::Untyped(1),
            "V2" => Self::Untyped(2),
            "f4" => Self::Row(Dtype::F32),
            "f2" => Self::Row(Dtype::F16),
            "i1" => Self::Row(Dtype::I8),
            "u1" => Self::Row(Dtype::U8),
            _ => Self::Other,
        };
        let swap = order == ">" && matches!(kind, "u8" | "i8" | "f4" | "f2");
        (element, swap)
    }

    /// The element of a safetensors `dtype`.
    pub fn of_safetensors(word: &str) -> Self {
        match word {
            "U64" | "I64" => Self::Key,
            _ => NAMES
                .iter()
                .find(|names| names.2 == word)
                .map_or(Self::Other, |names| Self::Row(names.0)),
        }
    }

    /// The dtype of rows of these elements. `asked` (`--dtype`) names untyped bytes; u8 counts as
    /// untyped too, since fp8 is often kept so. Nothing is ever converted.
    ///
    /// # Errors
    /// What is wrong, as part of an error line about "its elements", which are `written`.
    pub fn row_dtype(self, written: &str, asked: Option<Dtype>) -> Result<Dtype, String> {
        match (self, asked) {
            (Self::Row(found), None) => Ok(found),
            (Self::Row(found), Some(asked)) if found == asked => Ok(found),
            (Self::Row(Dtype::U8), Some(asked)) if asked.bytes() == 1 => Ok(asked),
            (Self::Untyped(bytes), Some(asked)) if asked.bytes() == bytes => Ok(asked),
            (Self::Row(_) | Self::Untyped(_), Some(asked)) => {
                let asked = asked.word();
                let why = "rows are moved bit for bit, never converted";
                Err(format!("are {written}, --dtype says {asked}: {why}"))
            }
            (Self::Untyped(bytes), None) => {
                let fitting = Dtype::ALL.into_iter().filter(|d| d.bytes() == bytes);
                let words: Vec<&str> = fitting.map(Dtype::word).collect();
                let words = words.join(" or ");
                Err(format!(
                    "are {written}, bytes without a type: say which by --dtype {words}"
                ))
            }
            (Self::Key | Self::Other, _) => {
                Err(format!("are {written}; tables take {}", Dtype::WORDS))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_has_names() {
        for dtype in Dtype::ALL {
            let word = safetensors_word(dtype);
            assert_eq!(Element::of_safetensors(word), Element::Row(dtype));
            let (element, swap) = Element::of_npy(npy_descr(dtype));
            assert_eq!(element.row_dtype("x", Some(dtype)), Ok(dtype));
            assert!(!swap);
        }
    }

    #[test]
    fn untyped_bytes_need_a_word() {
        let error = Element::Untyped(1)
            .row_dtype("<V1", None)
            .expect_err("untyped");
        assert!(error.contains("--dtype") && error.contains("u8"), "{error}");
        let f32 = Element::of_npy("<f4").0;
        let error = f32.row_dtype("<f4", Some(Dtype::U8)).expect_err("another");
        assert!(error.contains("<f4") && error.contains("u8"), "{error}");
        assert!(Element::Key.row_dtype("<u8", None).is_err());
        for unknown in ["", "f4", "<f8", "<V3", ">V2 ", "é4", "<U4"] {
            assert_eq!(Element::of_npy(unknown).0, Element::Other, "{unknown}");
        }
        assert_eq!(Element::of_npy(">f4"), (f32, true));
        assert_eq!(Element::of_npy(">u8"), (Element::Key, true));
        assert_eq!(Element::of_npy("<V2"), (Element::Untyped(2), false));
    }
}
