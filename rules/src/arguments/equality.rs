//! Equality of values in the arguments: numbers by value, objects in any order of their members.
//!
//! `uniqueItems` uses it to compare all items. Keyed digests separate them, so that no sender can
//! choose items with equal digests. Items with equal digests are compared.

use std::{
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
};

use jsonschema::json::{Array as _, Node as _, Object as _};
use serde_json::Number;

use super::{
    instance::{ArrayElements, InstanceEntry, InstanceNode},
    step_meter,
};

/// Returns whether no two of the `len` elements are equal. The result has no meaning after the
/// validation has ended.
pub(super) fn are_unlike(elements: ArrayElements<'_>, len: u32) -> bool {
    static CHANCE: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    if !step_meter::charge(8 * u64::from(len)) {
        return true;
    }
    let mut digests = Vec::with_capacity(len as usize);
    digests.extend(elements.map(|element| (element.digest(&CHANCE), element)));
    if step_meter::stop_reason().is_some() {
        return true;
    }
    // Equal elements are neighbours now.
    digests.sort_unstable_by_key(|(digest, _)| *digest);
    !digests.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[0].1.equals(&pair[1].1))
}

impl InstanceNode<'_> {
    /// Returns a digest that equal values share: numbers by value, objects in any order of their
    /// members.
    fn digest(&self, hasher: &RandomState) -> u64 {
        let Some(entry) = self.entry().filter(|_| step_meter::charge(1)) else { return 0 };
        match entry {
            InstanceEntry::Null => hasher.hash_one(0_u8),
            InstanceEntry::Bool(value) => hasher.hash_one((1_u8, value)),
            InstanceEntry::Number(number) => hasher.hash_one((2_u8, NumericValue::of(&number))),
            InstanceEntry::Text(text) => {
                hasher.hash_one((3_u8, step_meter::charge(text.len() as u64 / 16).then_some(text)))
            }
            InstanceEntry::Array { .. } => {
                let items = self.as_array().into_iter().flat_map(|array| array.elements());
                items.fold(hasher.hash_one(4_u8), |digest, item| {
                    hasher.hash_one((digest, item.digest(hasher)))
                })
            }
            InstanceEntry::Object { .. } => {
                let members = self.as_object().into_iter().flat_map(|object| object.members());
                members.fold(hasher.hash_one(5_u8), |digest, (name, value)| {
                    digest.wrapping_add(hasher.hash_one((name, value.digest(hasher))))
                })
            }
        }
    }

    fn equals(&self, other: &Self) -> bool {
        if !step_meter::charge(1) {
            return true;
        }
        match (self.entry(), other.entry()) {
            (Some(InstanceEntry::Array { len }), Some(InstanceEntry::Array { len: other_len })) => {
                let items =
                    |node: &Self| node.as_array().into_iter().flat_map(|array| array.elements());
                len == other_len && items(self).zip(items(other)).all(|(a, b)| a.equals(&b))
            }
            (
                Some(InstanceEntry::Object { len, .. }),
                Some(InstanceEntry::Object { len: other_len, .. }),
            ) => {
                let (Some(own), Some(others)) = (self.as_object(), other.as_object()) else {
                    return true;
                };
                len == other_len
                    && own.members().all(|(name, value)| {
                        others.member(name).is_some_and(|other| value.equals(&other))
                    })
            }
            (Some(InstanceEntry::Number(a)), Some(InstanceEntry::Number(b))) => {
                NumericValue::of(&a) == NumericValue::of(&b)
            }
            (Some(InstanceEntry::Bool(a)), Some(InstanceEntry::Bool(b))) => a == b,
            (Some(InstanceEntry::Null), Some(InstanceEntry::Null)) => true,
            _ => self.text().is_some_and(|text| {
                step_meter::charge(text.len() as u64 / 16) && other.text() == Some(text)
            }),
        }
    }
}

/// A number by its value.
#[derive(PartialEq, Eq, Hash)]
enum NumericValue {
    Whole(i128),
    Other(u64),
}

impl NumericValue {
    /// Bound of the whole numbers. All 64-bit floats from here on are whole, and none fits into 64
    /// bits.
    const WHOLE_MAX: f64 = 18_446_744_073_709_551_616.0;

    fn of(number: &Number) -> Self {
        if let Some(whole) =
            number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
        {
            return Self::Whole(whole);
        }
        let value = number.as_f64().unwrap_or_default();
        if value.fract() == 0.0 && value.abs() < Self::WHOLE_MAX {
            Self::Whole(value as i128)
        } else {
            Self::Other(value.to_bits())
        }
    }
}
