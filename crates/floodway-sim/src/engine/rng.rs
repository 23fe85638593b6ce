//! Random numbers: one generator per component, named.
//!
//! # Theory of operation
//! **Goal.** Adding a component, or one more draw in it, must not change what the others draw; then
//! two variants of a scenario meet the same arrivals (common random numbers). So there is no
//! shared generator: each component has its own, derived from the run's seed, the component's name
//! and its number. The name is hashed (FNV-1a), mixed with seed and number through `SplitMix64`, which
//! also fills the state, as the authors of xoshiro advise.
//!
//! The generator is xoshiro256++ (Blackman and Vigna, "Scrambled linear pseudorandom number generators",
//! 2021): 256 bits of state, period 2^256 - 1, a few instructions per number.
//!
//! Continuous draws use `ln` and `powf` of the platform's mathematics library. Two machines
//! with different libraries may differ in the last bit; two processes on one machine do not.

use super::digest::Digest;
use crate::Duration;

/// The generator of one component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The generator of component `number` of those called `name`, in the run with this seed.
    #[must_use]
    pub fn new(seed: u64, name: &str, number: u64) -> Self {
        let mut hashed = Digest::default();
        hashed.write_str(name);
        let mut mixer = seed;
        let mut mixer = split_mix(&mut mixer) ^ hashed.value();
        let mut mixer = split_mix(&mut mixer) ^ number;
        Self { state: std::array::from_fn(|_| split_mix(&mut mixer)) }
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// Uniform in `[0, 1)`, 53 bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform in `0..n`, without bias (Lemire 2019); zero if `n` is zero.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        loop {
            let product = u128::from(self.bits()) * u128::from(n);
            // 2^64 mod n: the products below it are one too many.
            if n == 0 || product as u64 >= n || product as u64 >= n.wrapping_neg() % n {
                return (product >> 64) as u64;
            }
        }
    }

    /// True with the given probability.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Exponentially distributed with the given mean: the gaps of a Poisson process.
    pub fn exponential(&mut self, mean: Duration) -> Duration {
        let gap = -(1.0 - self.unit()).ln() * mean.as_nanos() as f64;
        Duration::from_nanos(gap as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authors_values() {
        // Reference implementation of xoshiro256++ from state 1, 2, 3, 4.
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let expected = [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
            9_228_616_714_210_784_205,
            9_973_669_472_204_895_162,
        ];
        assert_eq!(expected.map(|_| rng.bits()), expected);
        // SplitMix64 from 0.
        let mut state = 0;
        assert_eq!(split_mix(&mut state), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn components_are_independent() {
        let first = |seed, name, number| Rng::new(seed, name, number).bits();
        let all =
            [first(1, "link", 0), first(1, "link", 1), first(1, "traffic", 0), first(2, "link", 0)];
        for (n, one) in all.iter().enumerate() {
            assert!(!all[..n].contains(one));
        }
        assert_eq!(first(1, "link", 1), all[1]);
    }

    #[test]
    fn moments() {
        let mut rng = Rng::new(7, "test", 0);
        let n = 200_000;
        let mean = (0..n).map(|_| rng.unit()).sum::<f64>() / f64::from(n);
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
        let gap = Duration::from_micros(100);
        let sum: Duration = (0..n).map(|_| rng.exponential(gap)).sum();
        assert!((sum.as_secs_f64() / f64::from(n) / 100e-6 - 1.0).abs() < 0.02);
        let mut seen = [0_u32; 6];
        for _ in 0..60_000 {
            seen[rng.below(6) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n.abs_diff(10_000) < 500), "{seen:?}");
        assert_eq!((rng.below(1), rng.below(0)), (0, 0));
    }
}
