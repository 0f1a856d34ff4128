//! What a gradient does to a row: the update rules, exact in f32, one lane at a time.
//!
//! The formulas are those of `golden/optimizers.json` (DESIGN 16). Every operation is rounded to
//! f32 on its own: no fused multiply-add, and sums across lanes in a fixed order, so that results
//! do not depend on the width of the vectors that the compiler chooses (I-10). A rule reads row,
//! state and gradient of a lane before it writes either.

mod adam;
mod ftrl;
pub mod init;
mod quantile;
mod rule;

pub use adam::Adam;
pub use ftrl::Ftrl;
pub use rule::{Gradient, Rule, Steps, add};

use zerocopy::little_endian::F32;

/// Whether every value is finite: no exponent is all ones. Written as a maximum over the bits,
/// which compiles to vector code.
#[must_use]
pub fn all_finite(values: &[f32]) -> bool {
    let most = values.iter().map(|v| v.to_bits() & 0x7FFF_FFFF).max();
    most.unwrap_or(0) < 0x7F80_0000
}

/// [`all_finite`] for values as they stand in a frame.
#[must_use]
pub fn all_finite_le(values: &[F32]) -> bool {
    let most = values.iter().map(|v| v.get().to_bits() & 0x7FFF_FFFF).max();
    most.unwrap_or(0) < 0x7F80_0000
}
