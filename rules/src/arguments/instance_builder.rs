//! Reads arguments into an [`Instance`], value by value.

use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};

use super::{
    instance::{Instance, MEMBERS_IN_LINE, PackedEntry},
    step_meter,
};

/// Visitor that appends each value it reads.
pub(super) struct InstanceBuilder<'r, 't>(pub(super) &'r mut Instance<'t>);

impl<'t> InstanceBuilder<'_, 't> {
    fn push<E: Error>(self, entry: PackedEntry) -> Result<(), E> {
        if !step_meter::charge(1) {
            return Err(E::custom("given up"));
        }
        self.0.entries.push(entry);
        Ok(())
    }
}

impl<'t> DeserializeSeed<'t> for InstanceBuilder<'_, 't> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'t>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'t> Visitor<'t> for InstanceBuilder<'_, 't> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.push(PackedEntry::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.push(PackedEntry::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.push(PackedEntry::Unsigned(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.push(PackedEntry::Signed(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.push(PackedEntry::Float(value))
    }

    fn visit_borrowed_str<E: Error>(self, value: &'t str) -> Result<(), E> {
        let start = value.as_ptr() as usize - self.0.text.as_ptr() as usize;
        self.push(PackedEntry::Text { start: start as u32, len: value.len() as u32 })
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        let index = self.0.resolved.len() as u32;
        self.0.resolved.push(value.to_owned());
        self.push(PackedEntry::Resolved(index))
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut items: A) -> Result<(), A::Error> {
        let instance = self.0;
        let at = instance.entries.len();
        InstanceBuilder(instance).push(PackedEntry::Null)?;
        let mut len = 0;
        while items.next_element_seed(InstanceBuilder(instance))?.is_some() {
            len += 1;
        }
        instance.entries[at] = PackedEntry::Array { len, end: instance.len() };
        Ok(())
    }

    fn visit_map<A: MapAccess<'t>>(self, mut members: A) -> Result<(), A::Error> {
        let instance = self.0;
        let at = instance.entries.len();
        InstanceBuilder(instance).push(PackedEntry::Null)?;
        let mut len = 0;
        while members.next_key_seed(InstanceBuilder(instance))?.is_some() {
            members.next_value_seed(InstanceBuilder(instance))?;
            len += 1;
        }
        instance.entries[at] =
            PackedEntry::Object { len, end: instance.len(), sorted: instance.sorted.len() as u32 };
        if len as usize > MEMBERS_IN_LINE {
            instance.sort_members(at as u32);
        }
        Ok(())
    }
}

impl Instance<'_> {
    fn sort_members(&mut self, at: u32) {
        let (start, end) = (self.sorted.len(), self.end(at));
        let mut key = at + 1;
        while key < end {
            self.sorted.push(key);
            key = self.end(key + 1);
        }
        let mut keys = self.sorted.split_off(start);
        keys.sort_unstable_by(|a, b| self.key(*a).cmp(self.key(*b)));
        self.sorted.append(&mut keys);
    }
}
