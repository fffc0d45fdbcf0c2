//! Requests to the API server as an administrator of the cluster sends them.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{Machine, deadline};

/// The certificate of the authority that has signed the server's.
pub(super) const AUTHORITY: &str = "/run/kubernetes/ca.crt";

/// A client on a machine.
#[derive(Clone, Debug)]
pub struct Api {
    machine: Machine,
    /// Scheme and address.
    server: String,
    token: String,
}

/// The types of requests' bodies.
const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";

impl Api {
    /// Returns a client on `machine`, whose file [`AUTHORITY`] it reads.
    pub(super) fn new(machine: &Machine, server: SocketAddr, token: &str) -> Self {
        Self {
            machine: machine.clone(),
            server: format!("https://{server}"),
            token: token.to_owned(),
        }
    }

    /// Returns a client of a server of the tests ([`ApiServer`](crate::api_server::ApiServer)) on
    /// `machine`.
    pub fn of_tests(machine: &Machine, server: SocketAddr, token: &str) -> Self {
        Self {
            server: format!("http://{server}"),
            ..Self::new(machine, server, token)
        }
    }

    /// Returns a client that has the rights of another token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    /// Returns an object, or a list.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.send("GET", path, None)
    }

    /// Creates an object, and returns it as the server has it.
    pub fn create(&self, path: &str, object: &Value) -> Result<Value> {
        self.send("POST", path, Some((JSON, &object.to_string())))
    }

    /// Merges `change` into an object (RFC 7386).
    pub fn merge(&self, path: &str, change: &Value) -> Result<Value> {
        self.send("PATCH", path, Some((MERGE, &change.to_string())))
    }

    /// Deletes an object at once.
    pub fn delete(&self, path: &str) -> Result<Value> {
        let options = r#"{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}"#;
        self.send("DELETE", path, Some((JSON, options)))
    }

    /// Returns status and body of the answer to a request, whatever it is.
    pub fn answer(&self, path: &str) -> Result<(u16, String)> {
        let mut words = self.words("GET", path);
        let limit = deadline().as_secs().to_string();
        words.extend(["--max-time", &limit, "--write-out", "\n%{http_code}"].map(str::to_owned));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = self.machine.output(&words)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').context("curl prints the status")?;
        Ok((status.parse()?, body.to_owned()))
    }

    fn send(&self, method: &str, path: &str, body: Option<(&str, &str)>) -> Result<Value> {
        let mut words = self.words(method, path);
        let limit = deadline().as_secs().to_string();
        words.extend(["--fail-with-body", "--max-time", &limit].map(str::to_owned));
        if let Some((kind, text)) = body {
            words.extend(["--header".to_owned(), format!("content-type: {kind}")]);
            words.extend(["--data-binary".to_owned(), text.to_owned()]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Ok(serde_json::from_str(&self.machine.call_words(&words)?)?)
    }

    fn words(&self, method: &str, path: &str) -> Vec<String> {
        let Self { server, token, .. } = self;
        [
            "curl",
            "--silent",
            "--show-error",
            "--cacert",
            AUTHORITY,
            "--header",
            &format!("authorization: Bearer {token}"),
            "--request",
            method,
            &format!("{server}{path}"),
        ]
        .map(str::to_owned)
        .to_vec()
    }
}
