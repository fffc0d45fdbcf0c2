//! Macros that declare keys: [`keys!`] their names, types and help, [`config!`] their validated
//! form and how a reload applies them.

/// How a changed key takes effect when the configuration is reloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// At the next start of the agent.
    Restart,
    /// At once.
    Live,
}

/// A value of a key, or none.
pub(super) trait KeyValue: Sized {
    /// Returns this value, or `other` where this one is not set.
    fn or(self, other: Self) -> Self;
}

impl<T> KeyValue for Option<T> {
    fn or(self, other: Self) -> Self {
        Option::or(self, other)
    }
}

impl KeyValue for Vec<String> {
    fn or(self, other: Self) -> Self {
        if self.is_empty() { other } else { self }
    }
}

/// Declares the flags of the command line, which are also the keys of the file: attributes of
/// clap, name and type. The help text ends with the default. A key whose default cannot be written,
/// or depends on the node, has an example for the sample, in TOML.
macro_rules! keys {
    ($($(#[$attribute:meta])* $key:ident: $type:ty $(= $example:literal)?,)*) => {
        /// All keys, unparsed; `None` or empty if not set.
        #[derive(Clone, Debug, Default, clap::Args, serde::Deserialize)]
        #[serde(rename_all = "kebab-case", default)]
        struct Keys {
            $($(#[$attribute])* $key: $type,)*
        }

        /// Examples by field of [`Keys`].
        const EXAMPLES: &[(&str, &str)] = &[$($((stringify!($key), $example),)?)*];

        impl Keys {
            /// Returns these keys, and where one is not set, that of the file.
            fn merge_over(self, file: Self) -> Self {
                Self {
                    $($key: KeyValue::or(self.$key, file.$key),)*
                }
            }
        }
    };
}

/// Declares the validated configuration. Each field has a reload rule, the names of its keys, a
/// type, and the expression that parses it from `$keys`. The block is executed before.
macro_rules! config {
    (
        |$keys:ident| { $($prelude:tt)* }
        $(
            $(#[$attribute:meta])*
            $rule:ident $names:literal => $field:ident: $type:ty = $value:expr,
        )*
    ) => {
        /// The validated configuration.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct Config {
            $($(#[$attribute])* pub(crate) $field: $type,)*
        }

        impl Config {
            fn from_keys($keys: Keys) -> Result<Self> {
                $($prelude)*
                Ok(Self {
                    $($field: $value,)*
                })
            }

            /// Returns the keys of `rule` that differ in `wanted`.
            fn changed(&self, wanted: &Self, rule: Rule) -> Vec<&'static str> {
                let fields = [$((Rule::$rule, $names, self.$field != wanted.$field)),*];
                fields
                    .into_iter()
                    .filter(|(of, _, differs)| *of == rule && *differs)
                    .map(|(_, names, _)| names)
                    .collect()
            }

            /// Adopts the values of `wanted`, except those of the keys that need a restart.
            pub(crate) fn adopt_reloadable(&mut self, wanted: Self) {
                $(if Rule::$rule == Rule::Live {
                    self.$field = wanted.$field;
                })*
            }
        }

        /// Reload rules of all fields, with the names of their keys.
        const RULES: &[(Rule, &str)] = &[$((Rule::$rule, $names)),*];

        /// Returns whether a reload applies `key` at once.
        fn is_live(key: &str) -> bool {
            let live = RULES.iter().filter(|(rule, _)| *rule == Rule::Live);
            live.flat_map(|(_, names)| names.split(", "))
                .any(|name| name == key)
        }
    };
}

pub(super) use {config, keys};
