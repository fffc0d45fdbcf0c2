//! Labels, and selectors of objects by their labels, with the meaning of Kubernetes'
//! `LabelSelector`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Labels of an object, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Labels(Box<[(Box<str>, Box<str>)]>);

impl Labels {
    /// Returns the value of a label.
    fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.binary_search_by(|(own, _)| (**own).cmp(key)).ok()?;
        Some(&self.0[found].1)
    }
}

impl From<BTreeMap<String, String>> for Labels {
    fn from(labels: BTreeMap<String, String>) -> Self {
        let pairs = labels.into_iter();
        Self(
            pairs
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        )
    }
}

/// A condition on labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Requirement {
    /// The label exists and has one of the values.
    In(Box<str>, BTreeSet<Box<str>>),
    /// The label is missing, or has another value.
    NotIn(Box<str>, BTreeSet<Box<str>>),
    Exists(Box<str>),
    DoesNotExist(Box<str>),
}

/// Selects the objects that meet all requirements; without any, all objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Selector(BTreeSet<Requirement>);

/// Error of a selector with requirements that have no meaning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("selector: {why}")]
pub(super) struct InvalidSelector {
    why: String,
    /// The selector without those requirements, which selects at least the same objects.
    pub(super) rest: Selector,
}

impl Selector {
    /// Parses a selector of the API. That of labels is the requirement `In` with one value.
    pub(super) fn parse(selector: LabelSelector) -> Result<Self, InvalidSelector> {
        let labels = selector.match_labels.into_iter().flatten();
        let mut rest: BTreeSet<Requirement> = labels
            .map(|(key, value)| Requirement::In(key.into(), [value.into()].into()))
            .collect();
        let mut error = None;
        for expression in selector.match_expressions.into_iter().flatten() {
            match Requirement::parse(expression) {
                Ok(requirement) => {
                    rest.insert(requirement);
                }
                Err(why) => error = Some(why),
            }
        }
        let rest = Self(rest);
        match error {
            None => Ok(rest),
            Some(why) => Err(InvalidSelector { why, rest }),
        }
    }

    /// Returns whether the selector selects all objects.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the selector selects an object with these labels.
    pub(super) fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|one| one.matches(labels))
    }
}

impl Requirement {
    fn parse(expression: LabelSelectorRequirement) -> Result<Self, String> {
        let key = expression.key;
        let values: BTreeSet<Box<str>> = expression
            .values
            .into_iter()
            .flatten()
            .map(Into::into)
            .collect();
        match (expression.operator.as_str(), values.is_empty()) {
            ("In", false) => Ok(Self::In(key.into(), values)),
            ("NotIn", false) => Ok(Self::NotIn(key.into(), values)),
            ("Exists", true) => Ok(Self::Exists(key.into())),
            ("DoesNotExist", true) => Ok(Self::DoesNotExist(key.into())),
            ("In" | "NotIn", true) => Err(format!("no value of {key:?}")),
            ("Exists" | "DoesNotExist", false) => Err(format!("values of {key:?} without a use")),
            (other, _) => Err(format!("unknown operator {other:?}")),
        }
    }

    fn matches(&self, labels: &Labels) -> bool {
        match self {
            Self::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Self::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Self::Exists(key) => labels.get(key).is_some(),
            Self::DoesNotExist(key) => labels.get(key).is_none(),
        }
    }
}

/// As kubectl writes selectors.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{requirement}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, values, one, several) = match self {
            Self::In(key, values) => (key, values, "=", "in"),
            Self::NotIn(key, values) => (key, values, "!=", "notin"),
            Self::Exists(key) => return f.write_str(&quoted(key)),
            Self::DoesNotExist(key) => return write!(f, "!{}", quoted(key)),
        };
        let texts: Vec<String> = values.iter().map(|value| quoted(value)).collect();
        match texts.as_slice() {
            [value] => write!(f, "{}{one}{value}", quoted(key)),
            _ => write!(f, "{} {several} ({})", quoted(key), texts.join(",")),
        }
    }
}

/// Returns the text, in quotes if it has characters that labels do not have. So different selectors
/// have different texts.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("{text:?}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(value: Value) -> Result<Selector, InvalidSelector> {
        Selector::parse(serde_json::from_value(value).unwrap())
    }

    fn labels(value: Value) -> Labels {
        serde_json::from_value::<BTreeMap<String, String>>(value)
            .unwrap()
            .into()
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] })
    }

    #[test]
    fn operators_of_label_selectors_have_the_meaning_of_kubernetes() {
        let (web, none) = (
            labels(json!({ "app": "web", "tier": "" })),
            labels(json!({})),
        );
        for (selector, of_web, of_none) in [
            (json!({}), true, true),
            (json!({ "matchLabels": { "app": "web" } }), true, false),
            (
                json!({ "matchLabels": { "app": "web", "a": "b" } }),
                false,
                false,
            ),
            (expression("app", "In", &["db", "web"]), true, false),
            (expression("app", "In", &["db"]), false, false),
            (expression("app", "NotIn", &["db"]), true, true),
            (expression("app", "NotIn", &["web"]), false, true),
            (expression("tier", "Exists", &[]), true, false),
            (expression("tier", "DoesNotExist", &[]), false, true),
            (expression("tier", "In", &[""]), true, false),
        ] {
            let text = selector.to_string();
            let parsed = parsed(selector).unwrap();
            assert_eq!(parsed.matches(&web), of_web, "{text}");
            assert_eq!(parsed.matches(&none), of_none, "{text}");
        }
    }

    #[test]
    fn a_selector_without_a_meaning_is_an_error_and_its_rest_selects_at_least_as_much() {
        for (operator, values, why) in [
            ("Gt", &["1"][..], "unknown operator \"Gt\""),
            ("in", &["web"], "unknown operator \"in\""),
            ("In", &[], "no value of \"app\""),
            ("Exists", &["web"], "values of \"app\" without a use"),
        ] {
            let mut selector = expression("app", operator, values);
            selector["matchLabels"] = json!({ "a": "b" });
            let error = parsed(selector).unwrap_err();
            assert_eq!(error.to_string(), format!("selector: {why}"));
            assert!(error.rest.matches(&labels(json!({ "a": "b" }))));
            assert!(!error.rest.matches(&labels(json!({ "app": "web" }))));
        }
    }

    #[test]
    fn selectors_are_printed_as_kubectl_does_and_equal_ones_have_one_text() {
        let selector = json!({ "matchLabels": { "b": "2" }, "matchExpressions": [
            { "key": "a", "operator": "In", "values": ["y", "x", "y"] },
            { "key": "c", "operator": "NotIn", "values": ["z"] },
            { "key": "d", "operator": "Exists" },
            { "key": "e", "operator": "DoesNotExist" },
            { "key": "f", "operator": "In", "values": ["a,b"] },
        ] });
        let selector = parsed(selector).unwrap();
        assert_eq!(selector.to_string(), r#"a in (x,y),b=2,f="a,b",c!=z,d,!e"#);
        assert_eq!(
            parsed(json!({ "matchLabels": { "a": "x" } })),
            parsed(expression("a", "In", &["x"]))
        );
    }
}
