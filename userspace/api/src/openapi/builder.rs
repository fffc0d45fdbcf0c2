//! The OpenAPI document while it is made: operations, schemas and parameters.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::{IntoParams, ToSchema};

use crate::{ErrorBody, ErrorReason, PageQuery};

/// Media type of JSON.
pub(super) const JSON: &str = "application/json";
/// Media type of streams: one JSON object per line.
const NDJSON: &str = "application/x-ndjson";
/// Methods of queries, which the read-only socket serves as well.
const GET: &str = "get";
pub(super) const PUT: &str = "put";
pub(super) const POST: &str = "post";

/// What all paths have in common.
const DESCRIPTION: &str = "\
The API of `viaductd` on its Unix socket; the read-only socket serves the queries (`GET`). \
Fields, paths and reasons are added within a major version, and never change their meaning: clients ignore unknown ones. \
A value that does not exist is `null`, or its field is missing. \
Times are seconds or milliseconds since 1970 (UTC), each with a field beside it in the format of RFC 3339. \
Integers are below 2^53; counters of packets and bytes count on beyond it, after 9 PB. \
Every error has the body `ErrorBody`, with CNI's code and a reason for programs.";

/// The document while it is made.
#[derive(Default)]
pub(super) struct Document {
    paths: BTreeMap<&'static str, Map<String, Value>>,
    schemas: BTreeMap<String, Value>,
}

/// The content of a body: its media type, and the schema of it or of each of its lines.
pub(super) struct Content(pub(super) &'static str, pub(super) Value);

/// One method of a path.
pub(super) struct Operation<'a> {
    document: &'a mut Document,
    method: &'static str,
    path: &'static str,
    value: Value,
}

impl Document {
    pub(super) fn query(
        &mut self,
        path: &'static str,
        what: &str,
        content: Content,
    ) -> Operation<'_> {
        Operation::new(self, GET, path, what, content)
    }

    pub(super) fn change(
        &mut self,
        method: &'static str,
        path: &'static str,
        what: &str,
        content: Content,
    ) -> Operation<'_> {
        Operation::new(self, method, path, what, content)
    }

    /// Adds the schemas of a type, and returns the reference to its own.
    fn reference<T: ToSchema>(&mut self) -> Value {
        let mut used = vec![(T::name().into_owned(), T::schema())];
        T::schemas(&mut used);
        for (name, schema) in used {
            let schema = serde_json::to_value(schema).expect("a schema is JSON");
            self.schemas.insert(name, schema);
        }
        json!({ "$ref": format!("#/components/schemas/{}", T::name()) })
    }

    pub(super) fn json<T: ToSchema>(&mut self) -> Content {
        Content(JSON, self.reference::<T>())
    }

    pub(super) fn list<T: ToSchema>(&mut self) -> Content {
        let items = self.reference::<T>();
        Content(JSON, json!({ "type": "array", "items": items }))
    }

    pub(super) fn lines<T: ToSchema>(&mut self) -> Content {
        Content(NDJSON, self.reference::<T>())
    }

    pub(super) fn print(mut self) -> String {
        let error = self.reference::<ErrorBody>();
        let words: Vec<String> = ErrorReason::ALL
            .iter()
            .map(|reason| format!("`{}`: {}", reason.word(), reason.meaning()))
            .collect();
        let text = format!("Reason, for programs. {}", words.join(" "));
        self.schemas.get_mut("ErrorBody").expect("it was added")["properties"]["reason"]["description"] =
            text.into();
        let mut document = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Viaduct",
                "version": crate::VERSION,
                "description": DESCRIPTION,
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            },
            "servers": [{
                "url": "http://viaduct",
                "description": format!("The Unix socket {}; the host is of no importance", crate::DEFAULT_SOCKET),
            }],
            "paths": self.paths,
            "components": {
                "schemas": self.schemas,
                "responses": {
                    "Error": {
                        "description": "The request was refused or has failed",
                        "content": { JSON: { "schema": error } },
                    },
                },
            },
        });
        without_links(&mut document);
        let text = serde_json::to_string_pretty(&document).expect("a value is JSON");
        text + "\n"
    }
}

/// Returns the content of a list of strings.
pub(super) fn strings() -> Content {
    Content(
        JSON,
        json!({ "type": "array", "items": { "type": "string" } }),
    )
}

impl<'a> Operation<'a> {
    /// Starts with the parameters in the path. A null schema is an empty body.
    fn new(
        document: &'a mut Document,
        method: &'static str,
        path: &'static str,
        what: &str,
        Content(media_type, schema): Content,
    ) -> Self {
        let mut success = json!({ "description": "The answer" });
        if !schema.is_null() {
            success["content"] = json!({ media_type: { "schema": schema } });
        }
        let named = path.split('/').filter_map(|part| {
            let name = part.strip_prefix('{')?.strip_suffix('}')?;
            let text = match name {
                "id" => "Container ID",
                _ => "Interface in the container",
            };
            Some(json!({
                "name": name, "in": "path", "required": true, "description": text,
                "schema": { "type": "string" },
            }))
        });
        let value = json!({
            "summary": what,
            "operationId": format!("{method}{}", path.replace(['/', '{', '}', '.'], "-")),
            "parameters": named.collect::<Vec<_>>(),
            "responses": { "200": success, "default": { "$ref": "#/components/responses/Error" } },
        });
        Self {
            document,
            method,
            path,
            value,
        }
    }

    pub(super) fn parameters<T: IntoParams>(mut self) -> Self {
        let named: Vec<Parameter> = T::into_params(|| Some(ParameterIn::Query));
        for parameter in named {
            self.push(serde_json::to_value(parameter).expect("a parameter is JSON"));
        }
        self
    }

    pub(super) fn page(self) -> Self {
        self.parameters::<PageQuery>()
    }

    pub(super) fn parameter(mut self, name: &str, what: &str) -> Self {
        let schema = json!({ "type": "string" });
        self.push(json!({ "name": name, "in": "query", "description": what, "schema": schema }));
        self
    }

    pub(super) fn flag(mut self, name: &str, what: &str) -> Self {
        let schema = json!({ "type": "boolean" });
        self.push(json!({ "name": name, "in": "query", "description": what, "schema": schema }));
        self
    }

    fn push(&mut self, parameter: Value) {
        let parameters = self.value["parameters"].as_array_mut();
        parameters.expect("new() makes a list").push(parameter);
    }

    pub(super) fn body<T: ToSchema>(self) -> Self {
        let schema = self.document.reference::<T>();
        self.content(Content(JSON, schema))
    }

    pub(super) fn content(mut self, Content(media_type, schema): Content) -> Self {
        let content = json!({ media_type: { "schema": schema } });
        self.value["requestBody"] = json!({ "required": true, "content": content });
        self
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let methods = self.document.paths.entry(self.path).or_default();
        methods.insert(self.method.to_owned(), self.value.take());
    }
}

/// Replaces rustdoc's links in descriptions by the names, line breaks by spaces, and `None` by
/// `null`.
fn without_links(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(text)) = map.get_mut("description") {
                *text = plain(text);
            }
            map.values_mut().for_each(without_links);
        }
        Value::Array(items) => items.iter_mut().for_each(without_links),
        Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => {}
    }
}

fn plain(text: &str) -> String {
    text.split("[`")
        .enumerate()
        .map(|(number, part)| match part.split_once("`]") {
            Some((link, rest)) if number > 0 => {
                let name = link.rsplit("::").next().unwrap_or(link);
                format!("`{name}`{rest}")
            }
            _ => part.to_owned(),
        })
        .collect::<String>()
        .replace('\n', " ")
        .replace("`None`", "`null`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_rustdoc_become_names_in_the_document() {
        let text = "See [`crate::A::b`] and [`C`];\nnot [d]; `None` without.";
        assert_eq!(plain(text), "See `b` and `C`; not [d]; `null` without.");
    }
}
