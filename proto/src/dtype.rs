//! Element types of planes.

use rkyv::{Archive, Deserialize, Serialize};

use crate::schema::SchemaError;

/// Element type of a plane.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE 754 binary32: the arithmetic type.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an f32: 8 bits of exponent, 7 of mantissa.
    Bf16,
    /// OCP FP8 E4M3, the `fn` form: no infinity, one NaN of each sign, largest value 448.
    F8e4m3,
    /// OCP FP8 E5M2: with infinities, largest value 57344.
    F8e5m2,
    /// A signed byte. Takes assign and delete only.
    I8,
    /// A byte. Takes assign and delete only.
    U8,
}

impl Dtype {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 7] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::F8e4m3,
        Self::F8e5m2,
        Self::I8,
        Self::U8,
    ];

    /// Their words, for messages.
    pub const WORDS: &str = "f32, f16, bf16, f8e4m3, f8e5m2, i8, u8";

    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::F8e4m3 | Self::F8e5m2 | Self::I8 | Self::U8 => 1,
        }
    }

    /// Its word on the command line and in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F8e4m3 => "f8e4m3",
            Self::F8e5m2 => "f8e5m2",
            Self::I8 => "i8",
            Self::U8 => "u8",
        }
    }

    /// Whether gradients and sums make sense on it.
    #[must_use]
    pub const fn is_float(self) -> bool {
        !matches!(self, Self::I8 | Self::U8)
    }

    /// Its largest finite value; the smallest is its negative, but -128 for i8 and 0 for u8.
    #[must_use]
    pub const fn largest(self) -> f32 {
        match self {
            Self::F32 => f32::MAX,
            Self::F16 => 65504.0,
            Self::Bf16 => f32::from_bits(0x7F7F_0000),
            Self::F8e4m3 => 448.0,
            Self::F8e5m2 => 57344.0,
            Self::I8 => 127.0,
            Self::U8 => 255.0,
        }
    }
}

impl std::str::FromStr for Dtype {
    type Err = SchemaError;

    fn from_str(word: &str) -> Result<Self, SchemaError> {
        let found = Self::ALL.into_iter().find(|d| d.word() == word);
        found.ok_or_else(|| {
            let why = format!("'{word}' is unknown; known: {}", Self::WORDS);
            SchemaError::new("dtype", why)
        })
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}
