//! Reasons of error responses, beside CNI's numeric codes.

/// Declares the reasons, each with its word on the wire and its meaning.
macro_rules! reasons {
    ($($(#[doc = $meaning:literal])+ $name:ident = $word:literal,)+) => {
        /// Why the agent refused a request: [`crate::ErrorBody::reason`] is the word of one of
        /// these.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum ErrorReason {
            $($(#[doc = $meaning])+ $name,)+
        }

        impl ErrorReason {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Returns the word on the wire, in kebab case.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)+
                }
            }

            /// Returns the meaning as a sentence.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($meaning),+).trim_ascii(),)+
                }
            }
        }
    };
}

reasons! {
    /// The agent has no such path.
    NoSuchPath = "no-such-path",
    /// The path does not have this method; the header `Allow` lists those that it has.
    NoSuchMethod = "no-such-method",
    /// The request is for another major version of the API.
    OtherApiVersion = "other-api-version",
    /// The read-only socket serves `GET` and `HEAD` only, and opens no namespace.
    ReadOnly = "read-only",
    /// The header `Host` has the name of a web site.
    ForeignHost = "foreign-host",
    /// A parameter, or the environment of a CNI command, is missing or invalid.
    InvalidRequest = "invalid-request",
    /// The body is no JSON, or has a value of the wrong type.
    InvalidBody = "invalid-body",
    /// The body is too large, arrived too slowly, or a file could not be read.
    InputOutput = "input-output",
    /// The network configuration or the setting is invalid, or one of its keys is not supported.
    InvalidConfiguration = "invalid-configuration",
    /// No attachment matches the request.
    UnknownContainer = "unknown-container",
    /// An address, a port or a name is in use, or a pool is exhausted.
    InUse = "in-use",
    /// Another process or pod has the host port.
    PortInUse = "port-in-use",
    /// Pods have addresses of a pod CIDR that would be removed.
    PodCidrsInUse = "pod-cidrs-in-use",
    /// Pods are attached.
    StillAttached = "still-attached",
    /// The attachment is not as its ADD has left it.
    CheckFailed = "check-failed",
    /// A pod that would be attached now would not work.
    NotAvailable = "not-available",
    /// The agent is starting, stopping, waiting for the node, or has too many requests.
    TryAgainLater = "try-again-later",
    /// The kernel, a file or the database refused an operation.
    Internal = "internal",
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_error_reason_has_a_word_of_its_own_and_a_meaning() {
        let words: BTreeSet<&str> = ErrorReason::ALL.iter().map(|it| it.word()).collect();
        assert_eq!(words.len(), ErrorReason::ALL.len());
        for reason in ErrorReason::ALL {
            assert!(reason.meaning().ends_with('.'), "{reason:?}");
        }
    }
}
