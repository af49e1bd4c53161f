//! Enums whose values have names: in the database, on the wire and in the admin API.

/// Defines an enum with a name for each value. A name that a later build wrote has no value.
macro_rules! named {
    (
        $(#[$meta:meta])*
        pub enum $type:ident {
            $($(#[$about:meta])* $value:ident = $name:literal,)+
        }
    ) => {
        $(#[$meta])*
        pub enum $type {
            $($(#[$about])* $value,)+
        }

        impl $type {
            pub const ALL: [Self; [$(Self::$value),+].len()] = [$(Self::$value),+];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }

            pub fn parse(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.name() == name)
            }
        }
    };
}

pub(crate) use named;
