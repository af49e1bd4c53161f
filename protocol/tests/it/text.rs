//! Random JSON texts: odd whitespace, escapes, deep Unicode, huge numbers, no duplicate keys.

use proptest::collection::{btree_map, vec};
use proptest::prelude::{Just, Strategy, any, prop_oneof};

/// Any amount of JSON whitespace, mostly none.
pub(crate) fn blank() -> impl Strategy<Value = String> {
    prop_oneof![4 => Just(String::new()), 1 => "[ \t\r\n]{1,70}"]
}

/// Returns a string literal. The same text may be written with escapes or without.
pub(crate) fn string_literal() -> impl Strategy<Value = String> {
    vec((any::<char>(), 0..4u8), 0..20).prop_map(|chars| {
        let mut out = String::from("\"");
        for (char, style) in chars {
            push_char(&mut out, char, style);
        }
        out + "\""
    })
}

fn push_char(out: &mut String, char: char, style: u8) {
    match (char, style) {
        ('"', _) => out.push_str("\\\""),
        ('\\', _) => out.push_str("\\\\"),
        ('/', 1) => out.push_str("\\/"),
        (char, 0) => {
            let mut units = [0u16; 2];
            for unit in char.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
        (char, _) if char < ' ' => out.push_str(&format!("\\u{:04X}", char as u32)),
        (char, _) => out.push(char),
    }
}

/// Numbers of any size and precision, exponents within what a double can hold.
pub(crate) fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        "-?(0|[1-9][0-9]{0,60})",
        "-?(0|[1-9][0-9]{0,20})\\.[0-9]{1,40}",
        "-?(0|[1-9][0-9]{0,5})(\\.[0-9]{1,10})?[eE][+-]?[0-9]{1,2}",
    ]
}

pub(crate) fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("false".to_owned()),
        number(),
        string_literal(),
    ];
    leaf.prop_recursive(8, 96, 8, |inner| {
        prop_oneof![
            vec((blank(), inner.clone(), blank()), 0..8).prop_map(|items| {
                let items: Vec<_> = items
                    .into_iter()
                    .map(|(before, item, after)| before + &item + &after)
                    .collect();
                format!("[{}]", items.join(","))
            }),
            object_of(inner),
        ]
    })
}

/// Returns an object whose keys are all different.
pub(crate) fn object() -> impl Strategy<Value = String> {
    object_of(value())
}

fn object_of(value: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    btree_map(".{0,12}", (blank(), blank(), value, blank(), 0..4u8), 0..8).prop_map(|members| {
        let members: Vec<_> = members
            .into_iter()
            .map(|(key, (before, colon, value, after, style))| {
                let mut literal = String::from("\"");
                key.chars().for_each(|char| push_char(&mut literal, char, style));
                format!("{before}{literal}\"{colon}:{colon}{value}{after}")
            })
            .collect();
        format!("{{{}}}", members.join(","))
    })
}
