//! Keys of a bench: uniform, or Zipf with the hot keys spread over the whole table.

use rand::Rng;
use rand::distr::Distribution as _;

/// Keys to draw from.
#[derive(Debug, Clone)]
pub enum KeySpace {
    /// `0..n`.
    Below(u64),
    /// These; not empty.
    These(Vec<u64>),
}

impl KeySpace {
    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Below(n) => *n,
            Self::These(keys) => keys.len() as u64,
        }
    }

    /// The key at `index`.
    #[must_use]
    pub fn key(&self, index: u64) -> u64 {
        match self {
            Self::Below(_) => index,
            Self::These(keys) => keys[index as usize],
        }
    }
}

/// How keys are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    /// Each as often as any other.
    Uniform,
    /// The key of rank r with a weight of `r^-exponent`.
    Zipf {
        /// Greater than 0.
        exponent: f64,
    },
}

impl std::str::FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let exponent = match text.split_once(':') {
            None if text == "uniform" => return Ok(Self::Uniform),
            Some(("zipf", exponent)) => exponent.parse().ok(),
            _ => None,
        };
        match exponent {
            Some(exponent) if exponent > 0.0 && exponent < 100.0 => Ok(Self::Zipf { exponent }),
            _ => Err(format!(
                "'{text}' is neither uniform nor zipf:S, as in zipf:1.05"
            )),
        }
    }
}

impl Distribution {
    /// Draws `count` keys.
    pub fn draw(self, space: &KeySpace, count: usize, rng: &mut impl Rng) -> Vec<u64> {
        let n = space.len();
        match self {
            Self::Uniform => (0..count)
                .map(|_| space.key(rng.random_range(0..n)))
                .collect(),
            Self::Zipf { exponent } => {
                let ranks = rand_distr::Zipf::new(n as f64, exponent)
                    .expect("n is at least 1, the exponent was checked when it was parsed");
                let spread = Spread::over(n);
                let draw = |_| {
                    let rank = (ranks.sample(rng) as u64).clamp(1, n) - 1;
                    space.key(spread.place(rank))
                };
                (0..count).map(draw).collect()
            }
        }
    }
}

/// A permutation of `0..n` that lays neighbours far apart: without it the hot ranks would be
/// neighbours, in one block of one shard.
#[derive(Debug, Clone, Copy)]
struct Spread {
    n: u64,
    factor: u64,
}

impl Spread {
    fn over(n: u64) -> Self {
        // Close to n times the golden ratio's inverse, and without a common divisor with n.
        let mut factor = ((u128::from(n) * 618_033_988_749_895) / 1_000_000_000_000_000) as u64;
        factor = factor.max(1);
        while gcd(factor, n) != 1 {
            factor += 1;
        }
        Self { n, factor }
    }

    fn place(self, rank: u64) -> u64 {
        (u128::from(rank) * u128::from(self.factor) % u128::from(self.n)) as u64
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn words() {
        assert_eq!("uniform".parse(), Ok(Distribution::Uniform));
        assert_eq!(
            "zipf:1.05".parse(),
            Ok(Distribution::Zipf { exponent: 1.05 })
        );
        for bad in [
            "", "zipf", "zipf:", "zipf:0", "zipf:NaN", "zipf:-1", "normal:1",
        ] {
            assert!(bad.parse::<Distribution>().is_err(), "{bad}");
        }
    }

    #[test]
    fn spreading_is_a_permutation() {
        for n in [1, 2, 3, 4, 10, 97, 1000, 4096] {
            let spread = Spread::over(n);
            let mut seen: Vec<u64> = (0..n).map(|rank| spread.place(rank)).collect();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..n), "{n}");
        }
    }

    /// The hottest of 10,000 keys is drawn about as often as Zipf's law says.
    #[test]
    fn zipf_is_skewed_and_uniform_is_not() {
        let space = KeySpace::Below(10_000);
        let hottest = |distribution: Distribution| {
            let mut rng = StdRng::seed_from_u64(1);
            let mut counts = vec![0u32; 10_000];
            for key in distribution.draw(&space, 100_000, &mut rng) {
                counts[key as usize] += 1;
            }
            counts.into_iter().max().expect("not empty")
        };
        assert!(hottest(Distribution::Uniform) < 40);
        let harmonic: f64 = (1..=10_000).map(|r| f64::from(r).powf(-1.05)).sum();
        let expected = 100_000.0 / harmonic;
        let found = f64::from(hottest(Distribution::Zipf { exponent: 1.05 }));
        assert!(
            (found / expected - 1.0).abs() < 0.1,
            "{found} of {expected}"
        );
    }

    #[test]
    fn keys_of_a_list_are_drawn_from_it() {
        let space = KeySpace::These(vec![u64::MAX, 7]);
        let mut rng = StdRng::seed_from_u64(1);
        for distribution in [Distribution::Uniform, Distribution::Zipf { exponent: 1.0 }] {
            let keys = distribution.draw(&space, 100, &mut rng);
            assert!(keys.contains(&7) && keys.contains(&u64::MAX));
            assert!(keys.iter().all(|key| matches!(*key, 7 | u64::MAX)));
        }
    }
}
