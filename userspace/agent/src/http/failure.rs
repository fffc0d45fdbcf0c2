//! Error responses: maps engine errors to CNI error codes, and those to HTTP status codes.

use std::error::Error as _;
use std::fmt;

use api::{ErrorBody, ErrorReason};
use axum::Json;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use engine::EngineError;
use planner::Category;
use serde::de::DeserializeOwned;

/// CNI's error code 3, "container unknown"; used by the API, and never returned for a CNI command.
pub(crate) const UNKNOWN_CONTAINER: u32 = 3;

/// The error of a request: the CNI error, and the reason of the API.
#[derive(Debug)]
pub(crate) struct Failure(cni::Error, ErrorReason);

impl Failure {
    /// Returns the failure for an error whose CNI code does not say enough.
    pub(crate) fn with_reason(error: cni::Error, reason: ErrorReason) -> Self {
        Self(error, reason)
    }

    /// Returns the CNI error.
    pub(crate) fn error(&self) -> &cni::Error {
        &self.0
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<cni::Error> for Failure {
    fn from(error: cni::Error) -> Self {
        let reason = reason(error.code);
        Self(error, reason)
    }
}

/// Returns the reason that a CNI error code stands for.
fn reason(code: u32) -> ErrorReason {
    match code {
        1 | 2 | 7 => ErrorReason::InvalidConfiguration,
        UNKNOWN_CONTAINER => ErrorReason::UnknownContainer,
        4 | 8 => ErrorReason::InvalidRequest,
        5 => ErrorReason::InputOutput,
        6 => ErrorReason::InvalidBody,
        api::TRY_AGAIN_LATER => ErrorReason::TryAgainLater,
        50 | 51 => ErrorReason::NotAvailable,
        100 => ErrorReason::InUse,
        101 => ErrorReason::CheckFailed,
        _ => ErrorReason::Internal,
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        let answer = match &error {
            EngineError::Refused(refusal) => match refusal.category() {
                Category::InvalidConfig => cni::Error::invalid_config(message),
                Category::InvalidEnvironment => cni::Error::environment(message),
                Category::Conflict | Category::Exhausted => cni::Error::taken(message),
                Category::Unavailable => cni::Error::try_again_later(message),
            },
            EngineError::PortInUse(_)
            | EngineError::PodCidrsInUse { .. }
            | EngineError::StillAttached(_) => cni::Error::taken(message),
            EngineError::Clash(_) | EngineError::AboveCeiling { .. } => {
                cni::Error::invalid_config(message)
            }
            EngineError::Different { .. }
            | EngineError::NotPublished(..)
            | EngineError::WrongIngressPolicy(..)
            | EngineError::SettingsDiffer { .. }
            | EngineError::NotAttached(_) => cni::Error::check_failed(message),
            EngineError::NotLinked(_)
            | EngineError::Unfinished(_)
            | EngineError::Cancelled(_)
            | EngineError::QueueFull
            | EngineError::QueueTimeout(_)
            | EngineError::Stopped => cni::Error::try_again_later(message),
            EngineError::Observe(_)
            | EngineError::Step { .. }
            | EngineError::Incomplete { .. }
            | EngineError::Store(_) => cni::Error::internal(message),
        };
        let reason = particular(&error).unwrap_or_else(|| reason(answer.code));
        Self(answer.with_details(causes(&error)), reason)
    }
}

/// Returns the reason of an error that says more than its CNI error code.
fn particular(error: &EngineError) -> Option<ErrorReason> {
    if matches!(error, EngineError::PortInUse(_)) {
        Some(ErrorReason::PortInUse)
    } else if matches!(error, EngineError::PodCidrsInUse { .. }) {
        Some(ErrorReason::PodCidrsInUse)
    } else if matches!(error, EngineError::StillAttached(_)) {
        Some(ErrorReason::StillAttached)
    } else {
        None
    }
}

fn causes(error: &EngineError) -> String {
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    causes.join(": ")
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = status(self.0.code);
        let body = ErrorBody {
            code: self.0.code,
            reason: self.1.word().to_owned(),
            message: self.0.msg,
            details: self.0.details,
        };
        (status, Json(body)).into_response()
    }
}

fn status(code: u32) -> StatusCode {
    match code {
        3 => StatusCode::NOT_FOUND,
        1..=8 => StatusCode::BAD_REQUEST,
        11 | 50 | 51 => StatusCode::SERVICE_UNAVAILABLE,
        100 | 101 => StatusCode::CONFLICT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The parameters in a query. That they cannot be parsed is an error with a body as all others.
pub(crate) struct Parameters<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let parsed = Query::<T>::from_request_parts(parts, state).await;
        let Query(value) = parsed.map_err(|error| cni::Error::environment(error.body_text()))?;
        Ok(Self(value))
    }
}

/// Responds to a path that the API does not have. For a path of another major version the
/// code is 11 (try again later): during an upgrade, plugin and agent are of different releases for
/// a moment.
pub(crate) async fn no_such_path(uri: Uri) -> Response {
    let own = api::VERSION
        .split('.')
        .next()
        .and_then(|it| it.parse().ok());
    let body = match api::major_of(uri.path()) {
        Some(requested) if Some(requested) != own => ErrorBody {
            code: api::TRY_AGAIN_LATER,
            reason: ErrorReason::OtherApiVersion.word().to_owned(),
            message: format!(
                "the agent has version {} of its API, and the request is for version {requested}",
                api::VERSION
            ),
            details: "install plugin, agent and viaductctl of the same release".to_owned(),
        },
        _ => ErrorBody {
            code: 4,
            reason: ErrorReason::NoSuchPath.word().to_owned(),
            message: "the API has no such path".to_owned(),
            details: format!("the agent has version {} of its API", api::VERSION),
        },
    };
    (StatusCode::NOT_FOUND, Json(body)).into_response()
}

/// Responds to a method that a path of the API does not have. The router adds the header `Allow`.
pub(crate) async fn no_such_method(method: Method, uri: Uri) -> Response {
    let body = ErrorBody {
        code: 4,
        reason: ErrorReason::NoSuchMethod.word().to_owned(),
        message: format!("the API has no {method} {}", uri.path()),
        details: "the header Allow of this response lists the methods of the path".to_owned(),
    };
    (StatusCode::METHOD_NOT_ALLOWED, Json(body)).into_response()
}

/// Responds to a request of the read-only socket that is no query.
pub(crate) fn read_only(method: &Method, uri: &Uri) -> Response {
    let body = ErrorBody {
        code: 4,
        reason: ErrorReason::ReadOnly.word().to_owned(),
        message: format!(
            "the read-only socket serves queries only: {method} {} is refused",
            uri.path()
        ),
        details: "use the agent's socket, as root".to_owned(),
    };
    (StatusCode::FORBIDDEN, Json(body)).into_response()
}

/// Responds to a request for a host that has the name of a web site.
pub(crate) fn foreign_host(host: &str) -> Response {
    let body = ErrorBody {
        code: 4,
        reason: ErrorReason::ForeignHost.word().to_owned(),
        message: format!("the read-only socket serves no host {host:?}"),
        details: "use localhost or an address".to_owned(),
    };
    (StatusCode::FORBIDDEN, Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use planner::Refusal;

    use ipam::AddressRefusal;

    use super::*;

    fn code(error: EngineError) -> u32 {
        Failure::from(error).0.code
    }

    #[test]
    fn transient_engine_errors_have_code_11() {
        assert_eq!(code(EngineError::QueueFull), 11);
        assert_eq!(code(EngineError::Stopped), 11);
        let network = "net".parse().unwrap();
        assert_eq!(
            code(Refusal::Address(AddressRefusal::NoRanges { network }).into()),
            11
        );
    }

    /// behaviour R10: users search for this message.
    #[test]
    fn an_exhausted_pool_is_reported_in_host_locals_words() {
        let set = "10.1.0.2-10.1.0.254".to_owned();
        let failure = Failure::from(EngineError::from(Refusal::Address(
            AddressRefusal::Exhausted { set },
        )));
        assert_eq!(failure.0.code, 100);
        assert_eq!(
            failure.0.msg,
            "no IP addresses available in range set: 10.1.0.2-10.1.0.254"
        );
    }
}
