//! Exit statuses: what a script can react to.

use std::io::ErrorKind;
use std::process::ExitCode;
use std::{error, fmt};

use api::{ClientError, TRY_AGAIN_LATER};

/// Text of `--help` and of the manual page.
pub(crate) const HELP: &str = "\
Exit status:
  0  success
  1  the agent refused the request, doctor or test has found a fault, the packet
     of why does not arrive, migrate has not moved each pod, or a plugin of cni failed
  2  wrong usage
  3  no agent answers
  4  the agent is overloaded or stopping: try again later";

/// The agent refused the request, or a verb has failed, as [`HELP`] says.
const REFUSED: u8 = 1;
/// No agent answers.
const NO_ANSWER: u8 = 3;
/// The request may succeed later.
const LATER: u8 = 4;

/// An error of a request, with what an operator can do about it in the next line.
#[derive(Debug)]
pub(crate) struct RequestFailed(pub(crate) ClientError);

impl fmt::Display for RequestFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = error::Error::source(&self.0);
        // An error that is displayed with its cause has none here.
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        match advice(&self.0) {
            Some(advice) => write!(f, "\n{advice}"),
            None => Ok(()),
        }
    }
}

impl error::Error for RequestFailed {}

/// Returns what an operator can do about an agent that does not respond.
pub(crate) fn advice(error: &ClientError) -> Option<&'static str> {
    match error {
        ClientError::Unreachable { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            Some(
                "Run viaductctl as root, or, for queries, as a member of the agent's `socket-group`.",
            )
        }
        ClientError::Unreachable { .. } => Some(
            "Is the agent running? Start it with `systemctl start viaductd`, and see `journalctl -u viaductd` for why \
             it stopped.\nIf it listens on another socket, pass --socket.",
        ),
        ClientError::Timeout { .. } => {
            Some("The agent is overloaded or stuck: see `journalctl -u viaductd`.")
        }
        ClientError::Broken { .. }
        | ClientError::Response { .. }
        | ClientError::Body(_)
        | ClientError::Refused(_) => None,
    }
}

/// Returns the exit status of a failed command.
pub(crate) fn of(error: &anyhow::Error) -> ExitCode {
    let own = error
        .downcast_ref::<RequestFailed>()
        .map(|failed| &failed.0);
    let status = match own.or_else(|| error.downcast_ref::<ClientError>()) {
        Some(ClientError::Refused(body)) if body.code == TRY_AGAIN_LATER => LATER,
        Some(ClientError::Refused(_)) | None => REFUSED,
        Some(
            ClientError::Unreachable { .. }
            | ClientError::Timeout { .. }
            | ClientError::Broken { .. }
            | ClientError::Response { .. }
            | ClientError::Body(_),
        ) => NO_ANSWER,
    };
    ExitCode::from(status)
}

#[cfg(test)]
mod tests {
    use api::ErrorBody;

    use super::*;

    #[test]
    fn the_exit_status_tells_a_refusal_from_an_agent_that_does_not_answer() {
        let refused = |code| {
            ClientError::Refused(ErrorBody {
                code,
                reason: String::new(),
                message: String::new(),
                details: String::new(),
            })
        };
        let timeout = || ClientError::Timeout {
            socket: "/run/v.sock".into(),
            after: std::time::Duration::from_secs(1),
        };
        for (error, status) in [
            (anyhow::Error::new(RequestFailed(refused(7))), 1),
            (anyhow::Error::new(RequestFailed(refused(11))), 4),
            (anyhow::Error::new(RequestFailed(timeout())), 3),
            (anyhow::Error::new(timeout()), 3),
            (anyhow::anyhow!("no pod web on this node"), 1),
        ] {
            assert_eq!(of(&error), ExitCode::from(status), "{error:?}");
        }
    }
}
