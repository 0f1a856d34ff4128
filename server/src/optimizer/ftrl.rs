//! FTRL-proximal, per coordinate: McMahan et al. 2013, algorithm 1.
//!
//! ```text
//! n' = n + g * g
//! z += g - (sqrt(n') - sqrt(n)) / lr * w
//! w  = 0 where |z| <= l1, else (sign(z) * l1 - z) / ((beta + sqrt(n')) / lr + l2)
//! ```

use super::rule::Gradient;

/// The hyper-parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ftrl {
    /// Learning rate.
    pub lr: f32,
    /// L1 regularisation.
    pub l1: f32,
    /// L2 regularisation.
    pub l2: f32,
    /// Added to the root.
    pub beta: f32,
    /// The accumulator of a new row.
    pub n0: f32,
}

impl Ftrl {
    pub(super) fn step(&self, row: &mut [f32], state: &mut [f32], gradient: Gradient<'_>) {
        let (n, z) = state.split_at_mut(row.len());
        for (((w, n), z), g) in row.iter_mut().zip(n).zip(z).zip(gradient) {
            let g = g.get();
            let next = *n + g * g;
            let sigma = (next.sqrt() - n.sqrt()) / self.lr;
            *z = *z + g - sigma * *w;
            *n = next;
            *w = self.weight(*n, *z);
        }
    }

    /// The weight that n and z stand for.
    #[inline(always)]
    fn weight(&self, n: f32, z: f32) -> f32 {
        let weight = (self.l1.copysign(z) - z) / self.scale(n);
        // Chosen, not branched on: the lanes stay one vector.
        if z.abs() <= self.l1 { 0.0 } else { weight }
    }

    #[inline(always)]
    fn scale(&self, n: f32) -> f32 {
        (self.beta + n.sqrt()) / self.lr + self.l2
    }

    pub(super) fn fresh(&self, row: &[f32], state: &mut [f32]) {
        state[..row.len()].fill(self.n0);
        self.agree(row, state);
    }

    /// Sets z so that a step with a zero gradient gives `row` again (see [`Ftrl::z_of`]).
    pub(super) fn agree(&self, row: &[f32], state: &mut [f32]) {
        let (n, z) = state.split_at_mut(row.len());
        for ((w, n), z) in row.iter().zip(n).zip(z) {
            *z = self.z_of(*w, *n);
        }
    }

    /// The z whose weight is `w`: solved in f64, then the f32 around it whose weight is `w` to
    /// the bit. There is not always one: z may be coarser than w. The weight is then off by a
    /// unit in the last place, or by l1's where l1 is large against it.
    fn z_of(&self, w: f32, n: f32) -> f32 {
        /// How far rounding of the weight's formula can lead away from the solution.
        const NEIGHBOURS: usize = 8;
        if w == 0.0 {
            return 0.0;
        }
        let scale = f64::from(self.scale(n));
        let solved = -(f64::from(w) * scale) - f64::from(self.l1.copysign(w));
        let solved = solved as f32;
        let (mut up, mut down) = (solved, solved);
        for _ in 0..NEIGHBOURS {
            for z in [up, down] {
                if self.weight(n, z) == w {
                    return z;
                }
            }
            (up, down) = (up.next_up(), down.next_down());
        }
        solved
    }
}
