//! Arguments in the form for the validator: a flat list of values, each of which costs steps.
//!
//! A value takes 16 bytes, whatever it holds, so the size of the arguments bounds the memory of a
//! validation. Strings without escapes borrow the client's text.
//!
//! Invariant: after the validation has ended, no value has parts.

use std::borrow::Cow;

use jsonschema::{
    JsonType,
    json::{self, Json, NodeIdentity, cmp},
};
use serde::de::{DeserializeSeed as _, Error as _};
use serde_json::{Number, Value};

use super::{equality, instance_builder::InstanceBuilder, step_meter};

/// Members up to which an object is searched in line. A larger one gets a binary search.
pub(super) const MEMBERS_IN_LINE: usize = 8;

/// All values of a text, each before its parts.
#[derive(Debug)]
pub(super) struct Instance<'t> {
    pub(super) text: &'t str,
    pub(super) entries: Vec<PackedEntry>,
    /// Strings and keys with escapes, resolved.
    pub(super) resolved: Vec<String>,
    /// Indexes of keys, grouped by object, sorted by key within each object.
    pub(super) sorted: Vec<u32>,
}

/// A value as it is kept.
#[derive(Debug, Clone, Copy)]
pub(super) enum PackedEntry {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    /// A part of the text.
    Text {
        start: u32,
        len: u32,
    },
    /// An index in `resolved`.
    Resolved(u32),
    Array {
        len: u32,
        end: u32,
    },
    Object {
        len: u32,
        end: u32,
        sorted: u32,
    },
}

const _: () = assert!(size_of::<PackedEntry>() == 16, "the module promises this size");

/// A value as it is read.
#[derive(Debug)]
pub(super) enum InstanceEntry<'a> {
    Null,
    Bool(bool),
    Number(Number),
    /// A string, or the key of the member that follows.
    Text(&'a str),
    Array {
        len: u32,
    },
    Object {
        len: u32,
        sorted: u32,
    },
}

impl<'t> Instance<'t> {
    /// Reads all of `text`. Fails if it is not JSON, if it is nested too deep, or if the validation
    /// ended.
    pub(super) fn read(text: &'t [u8]) -> Result<Self, serde_json::Error> {
        let text = std::str::from_utf8(text).map_err(serde_json::Error::custom)?;
        let values =
            1 + text.bytes().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count();
        let mut instance = Self {
            text,
            entries: Vec::with_capacity(values),
            resolved: Vec::new(),
            sorted: Vec::new(),
        };
        let mut reader = serde_json::Deserializer::from_str(text);
        InstanceBuilder(&mut instance).deserialize(&mut reader)?;
        reader.end()?;
        Ok(instance)
    }

    pub(super) fn root(&self) -> InstanceNode<'_> {
        InstanceNode::At(self, 0)
    }

    fn entry(&self, at: u32) -> InstanceEntry<'_> {
        match self.entries[at as usize] {
            PackedEntry::Null => InstanceEntry::Null,
            PackedEntry::Bool(value) => InstanceEntry::Bool(value),
            PackedEntry::Unsigned(value) => InstanceEntry::Number(value.into()),
            PackedEntry::Signed(value) => InstanceEntry::Number(value.into()),
            PackedEntry::Float(value) => match Number::from_f64(value) {
                Some(number) => InstanceEntry::Number(number),
                None => InstanceEntry::Null,
            },
            PackedEntry::Text { .. } | PackedEntry::Resolved(_) => {
                InstanceEntry::Text(self.key(at))
            }
            PackedEntry::Array { len, .. } => InstanceEntry::Array { len },
            PackedEntry::Object { len, sorted, .. } => InstanceEntry::Object { len, sorted },
        }
    }

    /// Returns the position behind the value at this position.
    pub(super) fn end(&self, at: u32) -> u32 {
        match self.entries[at as usize] {
            PackedEntry::Array { end, .. } | PackedEntry::Object { end, .. } => end,
            _ => at + 1,
        }
    }

    /// Returns the string or key at this position.
    pub(super) fn key(&self, at: u32) -> &str {
        match self.entries[at as usize] {
            PackedEntry::Text { start, len } => {
                let start = start as usize;
                self.text.get(start..start + len as usize).unwrap_or_default()
            }
            PackedEntry::Resolved(index) => &self.resolved[index as usize],
            _ => "",
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.entries.len() as u32
    }
}

/// The JSON representation for the validator.
pub(super) struct MeteredJson;

/// One value of an [`Instance`], or the name of a member.
#[derive(Clone, Copy)]
pub(super) enum InstanceNode<'a> {
    At(&'a Instance<'a>, u32),
    Name(&'a str),
}

#[derive(Clone, Copy)]
pub(super) struct ArrayNode<'a> {
    instance: &'a Instance<'a>,
    at: u32,
    len: u32,
}

#[derive(Clone, Copy)]
pub(super) struct ObjectNode<'a> {
    instance: &'a Instance<'a>,
    at: u32,
    len: u32,
    sorted: u32,
}

/// Iterator over the parts of an array or object.
pub(super) struct ChildIter<'a> {
    instance: &'a Instance<'a>,
    at: u32,
    end: u32,
}

impl Json for MeteredJson {
    type Node<'a> = InstanceNode<'a>;
    type PreparedKey = String;
    type StringBuffer = ();

    fn prepare_key(key: &str) -> String {
        key.to_owned()
    }

    fn with_string_node<T>(
        (): &mut (),
        string: &str,
        use_it: impl FnOnce(InstanceNode<'_>) -> T,
    ) -> T {
        use_it(InstanceNode::Name(string))
    }
}

impl<'a> InstanceNode<'a> {
    pub(super) fn entry(&self) -> Option<InstanceEntry<'a>> {
        match self {
            Self::At(instance, at) => Some(instance.entry(*at)),
            Self::Name(_) => None,
        }
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        match self {
            Self::Name(name) => Some(name),
            Self::At(instance, at) => match instance.entry(*at) {
                InstanceEntry::Text(text) => Some(text),
                _ => None,
            },
        }
    }
}

impl<'a> json::Node<'a, MeteredJson> for InstanceNode<'a> {
    type Object = ObjectNode<'a>;
    type Array = ArrayNode<'a>;
    type Number = Number;

    fn as_object(&self) -> Option<ObjectNode<'a>> {
        match self {
            Self::At(instance, at) => match instance.entry(*at) {
                InstanceEntry::Object { len, sorted } if step_meter::charge(1) => {
                    Some(ObjectNode { instance, at: *at, len, sorted })
                }
                _ => None,
            },
            Self::Name(_) => None,
        }
    }

    fn as_array(&self) -> Option<ArrayNode<'a>> {
        match self {
            Self::At(instance, at) => match instance.entry(*at) {
                InstanceEntry::Array { len } if step_meter::charge(1) => {
                    Some(ArrayNode { instance, at: *at, len })
                }
                _ => None,
            },
            Self::Name(_) => None,
        }
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        self.text().filter(|text| step_meter::charge(1 + text.len() as u64 / 16)).map(Cow::Borrowed)
    }

    fn as_number(&self) -> Option<Number> {
        match self.entry()? {
            InstanceEntry::Number(number) if step_meter::charge(1) => Some(number),
            _ => None,
        }
    }

    fn as_boolean(&self) -> Option<bool> {
        match self.entry()? {
            InstanceEntry::Bool(value) => Some(value),
            _ => None,
        }
    }

    fn is_null(&self) -> bool {
        matches!(self.entry(), Some(InstanceEntry::Null))
    }

    fn is_number(&self) -> bool {
        self.json_type() == JsonType::Number
    }

    fn json_type(&self) -> JsonType {
        match self.entry() {
            Some(InstanceEntry::Null) => JsonType::Null,
            Some(InstanceEntry::Bool(_)) => JsonType::Boolean,
            Some(InstanceEntry::Number(_)) => JsonType::Number,
            Some(InstanceEntry::Array { .. }) => JsonType::Array,
            Some(InstanceEntry::Object { .. }) => JsonType::Object,
            Some(InstanceEntry::Text(_)) | None => JsonType::String,
        }
    }

    fn equals_value(&self, expected: &Value) -> bool {
        use json::{Array as _, Object as _};
        if !step_meter::charge(1) {
            return true;
        }
        match (self.entry(), expected) {
            (Some(InstanceEntry::Array { len }), Value::Array(items)) => {
                let elements = self.as_array().into_iter().flat_map(|array| array.elements());
                len as usize == items.len()
                    && elements.zip(items).all(|(element, item)| element.equals_value(item))
            }
            (Some(InstanceEntry::Object { len, .. }), Value::Object(members)) => {
                let own = self.as_object().into_iter().flat_map(|object| object.members());
                len as usize == members.len() && { own }.all(|(name, value)| {
                    members.get(name).is_some_and(|member| value.equals_value(member))
                })
            }
            (Some(InstanceEntry::Number(number)), Value::Number(_)) => {
                cmp::equal(&Value::Number(number), expected)
            }
            (Some(InstanceEntry::Bool(value)), Value::Bool(expected)) => value == *expected,
            (Some(InstanceEntry::Null), Value::Null) => true,
            (_, Value::String(expected)) => {
                let is_equal = self
                    .text()
                    .is_some_and(|text| text.len() == expected.len() && text == expected);
                is_equal && step_meter::charge(expected.len() as u64 / 16)
            }
            _ => false,
        }
    }

    /// Called for each fault. The fault stores whether it is genuine, or caused by parts that are
    /// gone.
    fn to_value(&self) -> Cow<'a, Value> {
        Cow::Owned(Value::Bool(step_meter::record_error()))
    }

    fn identity(&self) -> Option<NodeIdentity> {
        match self {
            Self::At(instance, at) => {
                Some(NodeIdentity::tagged(std::ptr::from_ref(*instance) as usize, *at))
            }
            Self::Name(_) => None,
        }
    }
}

impl<'a> ObjectNode<'a> {
    fn parts(&self) -> ChildIter<'a> {
        ChildIter { instance: self.instance, at: self.at + 1, end: self.instance.end(self.at) }
    }

    pub(super) fn member(&self, name: &str) -> Option<InstanceNode<'a>> {
        let instance = self.instance;
        let len = self.len as usize;
        if len <= MEMBERS_IN_LINE {
            if !step_meter::charge(1 + u64::from(self.len)) {
                return None;
            }
            let mut at = self.at + 1;
            let end = instance.end(self.at);
            while at < end {
                if instance.key(at) == name {
                    return Some(InstanceNode::At(instance, at + 1));
                }
                at = instance.end(at + 1);
            }
            return None;
        }
        if !step_meter::charge(8 + name.len() as u64 / 4) {
            return None;
        }
        let keys = &instance.sorted[self.sorted as usize..][..len];
        let found = keys.binary_search_by(|key| instance.key(*key).cmp(name)).ok()?;
        Some(InstanceNode::At(instance, keys[found] + 1))
    }
}

impl<'a> json::Object<'a, MeteredJson> for ObjectNode<'a> {
    type Node = InstanceNode<'a>;
    type MemberName = &'a str;
    type MembersIter = ObjectMembers<'a>;

    fn len(&self) -> usize {
        self.len as usize
    }

    fn get(&self, key: &String) -> Option<InstanceNode<'a>> {
        self.member(key)
    }

    fn members(&self) -> ObjectMembers<'a> {
        ObjectMembers(self.parts())
    }
}

pub(super) struct ObjectMembers<'a>(ChildIter<'a>);

impl<'a> Iterator for ObjectMembers<'a> {
    type Item = (&'a str, InstanceNode<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let ChildIter { instance, at, end } = &mut self.0;
        if at >= end {
            return None;
        }
        let key = instance.key(*at);
        if !step_meter::charge_name(key.len()) {
            return None;
        }
        let value = *at + 1;
        *at = instance.end(value);
        Some((key, InstanceNode::At(instance, value)))
    }
}

pub(super) struct ArrayElements<'a>(ChildIter<'a>);

impl<'a> Iterator for ArrayElements<'a> {
    type Item = InstanceNode<'a>;

    fn next(&mut self) -> Option<InstanceNode<'a>> {
        let ChildIter { instance, at, end } = &mut self.0;
        if at >= end || !step_meter::charge(1) {
            return None;
        }
        let element = *at;
        *at = instance.end(element);
        Some(InstanceNode::At(instance, element))
    }
}

impl<'a> json::Array<'a, MeteredJson> for ArrayNode<'a> {
    type Node = InstanceNode<'a>;
    type ElementsIter = ArrayElements<'a>;

    fn len(&self) -> usize {
        self.len as usize
    }

    fn elements(&self) -> ArrayElements<'a> {
        ArrayElements(ChildIter {
            instance: self.instance,
            at: self.at + 1,
            end: self.instance.end(self.at),
        })
    }

    fn is_unique(&self) -> bool {
        equality::are_unlike(self.elements(), self.len)
    }
}
