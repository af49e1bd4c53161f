//! How a cost grows with the number of replicas.

use std::fmt;

use crate::digits;

/// Share of a cost by which two measurements of the same may differ.
const NOISE: f64 = 0.15;
/// Factor between the slopes of a cost that grows faster than the number of replicas.
const STEEPER: f64 = 1.6;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Growth {
    Constant,
    /// From this number of replicas on.
    ConstantFrom(usize),
    /// With so much more for each replica.
    Linear(f64),
    Faster,
    Falls,
}

impl fmt::Display for Growth {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant => out.write_str("constant"),
            Self::ConstantFrom(replicas) => write!(out, "constant from {replicas} on"),
            Self::Linear(each) => write!(out, "linear, {} for each", digits(*each)),
            Self::Faster => out.write_str("faster"),
            Self::Falls => out.write_str("falls"),
        }
    }
}

/// Returns the growth of a cost, measured with several numbers of replicas, fewest first. `least`:
/// the difference that is not more than noise. `None` if there is too little to tell.
pub fn growth(points: &[(usize, f64)], least: f64) -> Option<Growth> {
    let &[(first, low), .., (last, high)] = points else { return None };
    let is_noise = |difference: f64| difference.abs() <= least.max(NOISE * high.max(low));
    if is_noise(high - low) {
        return Some(Growth::Constant);
    }
    if high < low {
        return Some(Growth::Falls);
    }
    let slope = |from: (usize, f64), to: (usize, f64)| (to.1 - from.1) / (to.0 - from.0) as f64;
    let (middle, end) = (points[points.len() / 2], (last, high));
    if points.len() > 2 && is_noise(high - middle.1) {
        return Some(Growth::ConstantFrom(middle.0));
    }
    // Of two points nothing but a line can be seen.
    let (early, late) = (slope((first, low), middle), slope(middle, end));
    if points.len() > 2 && late > STEEPER * early.max(0.0) {
        return Some(Growth::Faster);
    }
    Some(Growth::Linear(slope((first, low), end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(cost: impl Fn(f64) -> f64) -> Option<Growth> {
        let points = [1, 2, 4, 8, 16].map(|replicas| (replicas, cost(replicas as f64)));
        growth(&points, 0.05)
    }

    #[test]
    fn growth_is_classified_as_constant_linear_or_faster() {
        assert_eq!(of(|_| 3.0), Some(Growth::Constant));
        assert_eq!(of(|replicas| 3.0 + 0.002 * replicas), Some(Growth::Constant));
        assert_eq!(of(|replicas| replicas.min(4.0)), Some(Growth::ConstantFrom(4)));
        assert_eq!(of(|replicas| 1.0 + 2.0 * replicas), Some(Growth::Linear(2.0)));
        assert_eq!(of(|replicas| 5.0 / replicas), Some(Growth::Falls));
        assert_eq!(of(|replicas| 40.0 + replicas * replicas), Some(Growth::Faster));
        assert_eq!(growth(&[(1, 1.0)], 0.0), None);
        assert_eq!(growth(&[(1, 1.0), (2, 3.0)], 0.0), Some(Growth::Linear(2.0)));
    }
}
