//! Arguments as the validator sees them: one flat list of values, each of which pays when it is looked at.
//!
//! Thirty-two bytes a value whatever it holds, so that the memory of a validation is bounded by the size of the arguments. Strings
//! without escapes stay in the client's text. Invariant: once the validation is over, nothing has parts any more.

use std::{borrow::Cow, fmt};

use jsonschema::{
    JsonType,
    json::{self, Json, NodeIdentity, cmp},
};
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

use super::{equality, step_meter};

/// Objects with more members are searched by halves.
const MEMBERS_IN_LINE: usize = 8;

/// All values of a text, each before its parts.
#[derive(Debug, Default)]
pub(super) struct Instance<'t> {
    entries: Vec<InstanceEntry<'t>>,
    /// Places of keys, of one object after the other, each sorted by key.
    sorted: Vec<u32>,
}

#[derive(Debug)]
pub(super) enum InstanceEntry<'t> {
    Null,
    Bool(bool),
    Number(Number),
    /// A string, or the key of the member that follows.
    Text(Cow<'t, str>),
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

impl<'t> Instance<'t> {
    /// Reads all of `text`. An error: it is not JSON, nested too deep, or the validation is over.
    pub(super) fn read(text: &'t [u8]) -> Result<Self, serde_json::Error> {
        let values =
            1 + text.iter().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count();
        let mut instance = Self { entries: Vec::with_capacity(values), sorted: Vec::new() };
        let mut reader = serde_json::Deserializer::from_slice(text);
        InstanceBuilder(&mut instance).deserialize(&mut reader)?;
        reader.end()?;
        Ok(instance)
    }

    pub(super) fn root(&self) -> InstanceNode<'_> {
        InstanceNode::At(self, 0)
    }

    fn entry(&self, at: u32) -> &InstanceEntry<'t> {
        &self.entries[at as usize]
    }

    /// Behind the value at this place.
    fn end(&self, at: u32) -> u32 {
        match self.entry(at) {
            InstanceEntry::Array { end, .. } | InstanceEntry::Object { end, .. } => *end,
            _ => at + 1,
        }
    }

    fn key(&self, at: u32) -> &str {
        match self.entry(at) {
            InstanceEntry::Text(key) => key,
            _ => "",
        }
    }

    fn len(&self) -> u32 {
        self.entries.len() as u32
    }
}

/// Appends what is read.
struct InstanceBuilder<'r, 't>(&'r mut Instance<'t>);

impl<'t> InstanceBuilder<'_, 't> {
    fn push<E: Error>(self, entry: InstanceEntry<'t>) -> Result<(), E> {
        if !step_meter::pay(1) {
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
        self.push(InstanceEntry::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.push(InstanceEntry::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.push(InstanceEntry::Number(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.push(InstanceEntry::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("no number"))?;
        self.push(InstanceEntry::Number(number))
    }

    fn visit_borrowed_str<E: Error>(self, value: &'t str) -> Result<(), E> {
        self.push(InstanceEntry::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.push(InstanceEntry::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut items: A) -> Result<(), A::Error> {
        let instance = self.0;
        let at = instance.entries.len();
        InstanceBuilder(instance).push(InstanceEntry::Null)?;
        let mut len = 0;
        while items.next_element_seed(InstanceBuilder(instance))?.is_some() {
            len += 1;
        }
        instance.entries[at] = InstanceEntry::Array { len, end: instance.len() };
        Ok(())
    }

    fn visit_map<A: MapAccess<'t>>(self, mut members: A) -> Result<(), A::Error> {
        let instance = self.0;
        let at = instance.entries.len();
        InstanceBuilder(instance).push(InstanceEntry::Null)?;
        let mut len = 0;
        while members.next_key_seed(InstanceBuilder(instance))?.is_some() {
            members.next_value_seed(InstanceBuilder(instance))?;
            len += 1;
        }
        instance.entries[at] = InstanceEntry::Object {
            len,
            end: instance.len(),
            sorted: instance.sorted.len() as u32,
        };
        if len as usize > MEMBERS_IN_LINE {
            instance.sort_members(at as u32);
        }
        Ok(())
    }
}

impl Instance<'_> {
    fn sort_members(&mut self, at: u32) {
        let (begin, end) = (self.sorted.len(), self.end(at));
        let mut key = at + 1;
        while key < end {
            self.sorted.push(key);
            key = self.end(key + 1);
        }
        let mut keys = self.sorted.split_off(begin);
        keys.sort_unstable_by(|a, b| self.key(*a).cmp(self.key(*b)));
        self.sorted.append(&mut keys);
    }
}

/// The representation, for the validator.
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

/// Goes through the parts of an array or object.
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
    pub(super) fn entry(&self) -> Option<&'a InstanceEntry<'a>> {
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
                InstanceEntry::Object { len, sorted, .. } if step_meter::pay(1) => {
                    Some(ObjectNode { instance, at: *at, len: *len, sorted: *sorted })
                }
                _ => None,
            },
            Self::Name(_) => None,
        }
    }

    fn as_array(&self) -> Option<ArrayNode<'a>> {
        match self {
            Self::At(instance, at) => match instance.entry(*at) {
                InstanceEntry::Array { len, .. } if step_meter::pay(1) => {
                    Some(ArrayNode { instance, at: *at, len: *len })
                }
                _ => None,
            },
            Self::Name(_) => None,
        }
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        self.text().filter(|text| step_meter::pay(1 + text.len() as u64 / 16)).map(Cow::Borrowed)
    }

    fn as_number(&self) -> Option<Number> {
        match self.entry()? {
            InstanceEntry::Number(number) if step_meter::pay(1) => Some(number.clone()),
            _ => None,
        }
    }

    fn as_boolean(&self) -> Option<bool> {
        match self.entry()? {
            InstanceEntry::Bool(value) => Some(*value),
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
        if !step_meter::pay(1) {
            return true;
        }
        match (self.entry(), expected) {
            (Some(InstanceEntry::Array { len, .. }), Value::Array(items)) => {
                let elements = self.as_array().into_iter().flat_map(|array| array.elements());
                *len as usize == items.len()
                    && elements.zip(items).all(|(element, item)| element.equals_value(item))
            }
            (Some(InstanceEntry::Object { len, .. }), Value::Object(members)) => {
                let mine = self.as_object().into_iter().flat_map(|object| object.members());
                *len as usize == members.len() && { mine }.all(|(name, value)| {
                    members.get(name).is_some_and(|member| value.equals_value(member))
                })
            }
            (Some(InstanceEntry::Number(number)), Value::Number(_)) => {
                cmp::equal(&Value::Number(number.clone()), expected)
            }
            (Some(InstanceEntry::Bool(value)), Value::Bool(expected)) => value == expected,
            (Some(InstanceEntry::Null), Value::Null) => true,
            (_, Value::String(expected)) => {
                let is_equal = self
                    .text()
                    .is_some_and(|text| text.len() == expected.len() && text == expected);
                is_equal && step_meter::pay(expected.len() as u64 / 16)
            }
            _ => false,
        }
    }

    /// Asked for each fault that is made. The fault holds whether it is one, or comes of parts that are gone.
    fn to_value(&self) -> Cow<'a, Value> {
        Cow::Owned(Value::Bool(step_meter::note_fault()))
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
            if !step_meter::pay(1 + u64::from(self.len)) {
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
        if !step_meter::pay(8 + name.len() as u64 / 4) {
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
        if !step_meter::pay_name(key.len()) {
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
        if at >= end || !step_meter::pay(1) {
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
