//! Says to the agent that the API server does not answer, so that its status shows that the list of
//! peers may be out of date.

use std::time::Duration;

use api::PeerSourceSetting;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::agent::Agent;
use crate::watching::ApiServer;

/// Name of this program in the agent's status.
const PROGRAM: &str = "viaduct-kube";
/// Shorter outages are not reported: a server that is replaced is away for some seconds.
const GRACE: Duration = Duration::from_secs(10);
/// Delay after a refusal of the agent, for example by one that is older.
const RETRY: Duration = Duration::from_secs(30);
/// Longest error that is sent, in bytes; the agent accepts no longer ones.
const MAX_ERROR: usize = 1000;

/// Reports each outage of the watch of Nodes that lasts, and its end. Reports again to an agent
/// that has started, since it knows of no outage, and when this program has started, since the
/// agent may know of an outage that is over.
pub(crate) async fn report(mut agent: Agent, mut api_server: watch::Receiver<ApiServer>) {
    let mut reported = None;
    loop {
        let present = api_server.borrow_and_update().clone();
        let state = *agent.state.borrow_and_update();
        let mut again = None;
        if state.is_serving {
            let wanted = Reported {
                generation: state.generation,
                api_server: present,
            };
            match step(reported.as_ref(), &wanted, Instant::now()) {
                Step::Nothing => {}
                Step::Wait(until) => again = Some(until),
                Step::Report(setting) => match agent.put_peer_source(setting).await {
                    Ok(()) => reported = Some(wanted),
                    Err(error) => {
                        tracing::debug!(%error, "the agent was not told about the API server");
                        again = Some(Instant::now() + RETRY);
                    }
                },
            }
        }
        let ended = tokio::select! {
            result = api_server.changed() => result,
            result = agent.state.changed() => result,
            () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => Ok(()),
        };
        if ended.is_err() {
            return;
        }
    }
}

/// What one agent was told.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reported {
    generation: u64,
    api_server: ApiServer,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Wait(Instant),
    Report(PeerSourceSetting),
}

fn step(reported: Option<&Reported>, wanted: &Reported, now: Instant) -> Step {
    if reported == Some(wanted) {
        return Step::Nothing;
    }
    let (error, seconds) = match &wanted.api_server {
        ApiServer::Unknown => return Step::Nothing,
        ApiServer::Answers => (None, 0),
        ApiServer::Fails { began, .. } if now < *began + GRACE => {
            return Step::Wait(*began + GRACE);
        }
        ApiServer::Fails { began, error } => (
            Some(shortened(error).to_owned()),
            now.duration_since(*began).as_secs(),
        ),
    };
    Step::Report(PeerSourceSetting {
        program: PROGRAM.to_owned(),
        error,
        seconds,
    })
}

fn shortened(error: &str) -> &str {
    let end = (0..=MAX_ERROR.min(error.len()))
        .rev()
        .find(|end| error.is_char_boundary(*end));
    &error[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(generation: u64, began: Instant) -> Reported {
        let error = "nodes: refused".to_owned();
        Reported {
            generation,
            api_server: ApiServer::Fails { began, error },
        }
    }

    fn answers(generation: u64) -> Reported {
        Reported {
            generation,
            api_server: ApiServer::Answers,
        }
    }

    #[test]
    fn an_outage_is_reported_when_it_lasts_and_so_is_its_end() {
        let began = Instant::now();
        let outage = fails(1, began);
        let after = |seconds| {
            let now = began + Duration::from_secs(seconds);
            step(Some(&answers(1)), &outage, now)
        };
        assert_eq!(after(9), Step::Wait(began + GRACE));
        let Step::Report(setting) = after(25) else {
            panic!("{:?}", after(25));
        };
        assert_eq!(setting.error.as_deref(), Some("nodes: refused"));
        assert_eq!(setting.seconds, 25);

        let later = began + Duration::from_mins(10);
        assert_eq!(step(Some(&outage), &outage, later), Step::Nothing);
        let Step::Report(setting) = step(Some(&outage), &answers(1), later) else {
            panic!("the end is not reported");
        };
        assert_eq!(setting.error, None);
    }

    #[test]
    fn an_agent_that_has_started_is_told_again() {
        let began = Instant::now();
        let later = began + Duration::from_mins(1);
        let again = step(Some(&fails(1, began)), &fails(2, began), later);
        assert!(matches!(again, Step::Report(_)));
    }

    #[test]
    fn an_outage_that_another_instance_has_reported_ends_with_the_first_answer() {
        let now = Instant::now();
        let unknown = Reported {
            generation: 1,
            api_server: ApiServer::Unknown,
        };
        assert_eq!(step(None, &unknown, now), Step::Nothing);
        assert!(matches!(step(None, &answers(1), now), Step::Report(_)));
    }

    #[test]
    fn a_long_error_is_cut_at_a_character() {
        assert_eq!(shortened("short"), "short");
        let long = "ä".repeat(MAX_ERROR);
        assert_eq!(shortened(&long).len(), MAX_ERROR);
        assert_eq!(shortened(&format!("x{long}")).len(), MAX_ERROR - 1);
    }
}
