//! JSON parser with Go's rules: keys in any case, null and "" like a missing key, the last of
//! several equal keys.
//!
//! Runtimes are written in Go, whose decoder ignores the case of keys. Some send the names of their
//! struct fields (`HostPort`) where the specification has `hostPort` (behaviour B0.1). Keys are
//! therefore folded to lower case on parsing, and looked up by the specification's name. Every
//! error has the path of its key.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::Error;

/// Parses a JSON object; keys become lower case, unset values are removed.
///
/// Keys that begin with `cni.dev/` keep a null, which means an empty list there (behaviour S12).
pub(crate) fn parse(text: &str) -> Result<Map<String, Value>, Error> {
    let folded = serde_json::from_str::<Folded>(text).map_err(|error| {
        Error::decode(format!("network configuration is not valid JSON: {error}"))
    })?;
    match folded.0 {
        Some(Value::Object(map)) => Ok(map),
        _ => Err(Error::decode("network configuration is not a JSON object")),
    }
}

/// Parses a JSON value inside a string, such as an annotation's; an unset value becomes an empty
/// list.
pub(crate) fn parse_text(text: &str) -> Result<Value, String> {
    let folded = serde_json::from_str::<Folded>(text).map_err(|error| error.to_string())?;
    Ok(folded.0.unwrap_or_else(|| Value::Array(Vec::new())))
}

/// Prints one of our own types, which hold only strings, numbers, lists and objects.
pub(crate) fn print(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("texts, numbers and lists are JSON")
}

/// A value, with its path for error messages.
#[derive(Clone)]
pub(crate) struct Node<'a> {
    path: String,
    value: &'a Value,
}

/// An object, with its path for error messages; the path of the whole configuration is empty.
#[derive(Clone)]
pub(crate) struct Object<'a> {
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    pub(crate) fn root(map: &'a Map<String, Value>) -> Self {
        Self {
            path: String::new(),
            map,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Returns the value of a key, which is given in the specification's spelling.
    pub(crate) fn get(&self, key: &str) -> Option<Node<'a>> {
        let value = self.map.get(&key.to_ascii_lowercase())?;
        Some(Node {
            path: self.path_of(key),
            value,
        })
    }

    /// Returns all members whose values are strings; keys are in lower case.
    pub(crate) fn all_texts(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.map
            .iter()
            .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    }

    /// Returns the path of a key, which need not exist.
    pub(crate) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, Error> {
        self.get(key).map(|node| node.text()).transpose()
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        self.get(key).map(|node| node.flag()).transpose()
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<i64>, Error> {
        self.get(key).map(|node| node.number()).transpose()
    }

    pub(crate) fn object(&self, key: &str) -> Result<Option<Self>, Error> {
        self.get(key).map(|node| node.object()).transpose()
    }

    /// Returns the elements of a list; none if the key is missing.
    pub(crate) fn list(&self, key: &str) -> Result<Vec<Node<'a>>, Error> {
        self.get(key)
            .map_or_else(|| Ok(Vec::new()), |node| node.list())
    }

    /// Returns the elements of a list as [`Self::list`] does. Fails with code 7 if there are more
    /// than `most`.
    pub(crate) fn list_up_to(&self, key: &str, most: usize) -> Result<Vec<Node<'a>>, Error> {
        let list = self.list(key)?;
        if list.len() > most {
            let why = format_args!("{} entries, more than {most}", list.len());
            return Err(Error::invalid_config(format!(
                "{}: {why}",
                self.path_of(key)
            )));
        }
        Ok(list)
    }

    /// Returns the strings of a list.
    pub(crate) fn texts(&self, key: &str) -> Result<Vec<String>, Error> {
        self.list(key)?
            .into_iter()
            .map(|node| Ok(node.text()?.to_owned()))
            .collect()
    }

    /// Parses a string as `T`; an unparsable one is an invalid configuration (code 7).
    pub(crate) fn parsed<T>(&self, key: &str) -> Result<Option<T>, Error>
    where
        T: FromStr<Err: fmt::Display>,
    {
        self.get(key).map(|node| node.parsed()).transpose()
    }

    /// Parses a string as `T`; a missing key is an invalid configuration (code 7).
    pub(crate) fn required<T>(&self, key: &str) -> Result<T, Error>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let missing = || Error::invalid_config(format!("missing {}", self.path_of(key)));
        self.parsed(key)?.ok_or_else(missing)
    }
}

impl<'a> Node<'a> {
    pub(crate) fn new(path: String, value: &'a Value) -> Self {
        Self { path, value }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn value(&self) -> &'a Value {
        self.value
    }

    pub(crate) fn text(&self) -> Result<&'a str, Error> {
        self.value.as_str().ok_or_else(|| self.wrong("a string"))
    }

    pub(crate) fn flag(&self) -> Result<bool, Error> {
        self.value.as_bool().ok_or_else(|| self.wrong("a boolean"))
    }

    pub(crate) fn number(&self) -> Result<i64, Error> {
        let number = self.value.as_i64();
        number.ok_or_else(|| self.wrong("an integer"))
    }

    pub(crate) fn object(&self) -> Result<Object<'a>, Error> {
        let map = self.value.as_object();
        Ok(Object {
            path: self.path.clone(),
            map: map.ok_or_else(|| self.wrong("an object"))?,
        })
    }

    pub(crate) fn list(&self) -> Result<Vec<Self>, Error> {
        let list = self.value.as_array().ok_or_else(|| self.wrong("a list"))?;
        let nodes = list.iter().enumerate().map(|(index, value)| Self {
            path: format!("{}[{index}]", self.path),
            value,
        });
        Ok(nodes.collect())
    }

    pub(crate) fn parsed<T>(&self) -> Result<T, Error>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let parsed = self.text()?.parse();
        parsed.map_err(|error| self.invalid(error))
    }

    /// Returns the error (code 7) for an invalid value of the right type.
    pub(crate) fn invalid(&self, why: impl fmt::Display) -> Error {
        Error::invalid_config(format!("{}: {why}", self.path))
    }

    /// Returns the error (code 6) for a value of the wrong type.
    fn wrong(&self, wanted: &str) -> Error {
        let found = match self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        };
        Error::decode(format!("{}: expected {wanted}, found {found}", self.path))
    }
}

/// A value whose objects have folded keys; `None` for null and "".
struct Folded(Option<Value>);

impl<'de> Deserialize<'de> for Folded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Fold)
    }
}

struct Fold;

impl<'de> Visitor<'de> for Fold {
    type Value = Folded;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Folded, E> {
        Ok(Folded(Some(value.into())))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Folded, E> {
        Ok(Folded(Some(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Folded, E> {
        Ok(Folded(Some(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Folded, E> {
        Ok(Folded(Some(value.into())))
    }

    fn visit_str<E>(self, value: &str) -> Result<Folded, E> {
        Ok(Folded((!value.is_empty()).then(|| value.into())))
    }

    fn visit_unit<E>(self) -> Result<Folded, E> {
        Ok(Folded(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Folded, A::Error> {
        let mut values = Vec::new();
        while let Some(Folded(value)) = list.next_element()? {
            values.extend(value);
        }
        Ok(Folded(Some(values.into())))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Folded, A::Error> {
        let mut map = Map::new();
        while let Some((key, Folded(value))) = entries.next_entry::<String, Folded>()? {
            let key = key.to_ascii_lowercase();
            if let Some(value) = value {
                map.insert(key, value);
            } else if key.starts_with("cni.dev/") {
                map.insert(key, Value::Null);
            }
        }
        Ok(Folded(Some(map.into())))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn folded(text: &str) -> Value {
        Value::Object(parse(text).unwrap())
    }

    /// behaviour B0.1
    #[test]
    fn keys_of_any_case_are_one_key_and_the_last_wins() {
        let text = r#"{"cniVersion":"1.0.0","CNIVersion":"0.4.0","a":{"B":[{"C":1}]}}"#;
        assert_eq!(
            folded(text),
            json!({"cniversion": "0.4.0", "a": {"b": [{"c": 1}]}})
        );
    }

    /// behaviour B0.2
    #[test]
    fn null_and_the_empty_string_are_missing_and_never_hide_a_value() {
        let text = r#"{"a":null,"b":"","c":[null,"",1],"d":"x","D":null}"#;
        assert_eq!(folded(text), json!({"c": [1], "d": "x"}));
    }

    /// behaviour S12
    #[test]
    fn a_null_list_of_valid_attachments_is_an_empty_list() {
        let text = r#"{"cni.dev/valid-attachments":null}"#;
        assert_eq!(folded(text), json!({"cni.dev/valid-attachments": null}));
    }

    /// behaviour S6: a decode error names the key.
    #[test]
    fn an_error_names_the_key_by_its_path() {
        let map = parse(r#"{"ipam":{"ranges":[[{"subnet":7}]]}}"#).unwrap();
        let ipam = Object::root(&map).object("ipam").unwrap().unwrap();
        let sets = ipam.list("ranges").unwrap();
        let range = sets[0].list().unwrap()[0].object().unwrap();
        let error = range.text("subnet").unwrap_err();
        assert_eq!(error.code, 6);
        assert_eq!(
            error.msg,
            "ipam.ranges[0][0].subnet: expected a string, found a number"
        );
    }

    #[test]
    fn a_configuration_that_is_not_an_object_is_a_decode_error() {
        for text in ["", "[]", "null", "7", "{", "{\"a\":}"] {
            assert_eq!(parse(text).unwrap_err().code, 6, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text: String) {
            let _ = parse(&text);
        }
    }
}
