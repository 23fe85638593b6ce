//! What mechanisms count.

/// Declares a struct of counters once: fields, their names on the control socket, their meanings.
macro_rules! counters {
    ($(#[$about:meta])+ pub struct $counters:ident { $($(#[doc = $doc:literal])+ $name:ident,)+ }) => {
        $(#[$about])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl $counters {
            /// Returns every counter with its name and meaning.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($doc),+).trim_ascii(), self.$name),)+].into_iter()
            }
        }
    };
}

pub(crate) use counters;
