//! Says to the agent that the API server does not answer, so that its status shows that the list of
//! peers may be out of date.

use std::time::Duration;

use api::PeerSourceSetting;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::agent::Agent;
use crate::watching::ApiOutage;

/// Name of this program in the agent's status.
const PROGRAM: &str = "viaduct-kube";
/// Shorter outages are not reported: a server that is replaced is away for some seconds.
const GRACE: Duration = Duration::from_secs(10);
/// Delay after a refusal of the agent, for example by one that is older.
const RETRY: Duration = Duration::from_secs(30);
/// Longest error that is sent, in bytes; the agent accepts no longer ones.
const MAX_ERROR: usize = 1000;

/// Reports each outage of the watch of Nodes that lasts, and its end. A new agent knows of none,
/// and of no earlier report.
pub(crate) async fn report(mut agent: Agent, mut outage: watch::Receiver<Option<ApiOutage>>) {
    let mut reported = Reported::default();
    loop {
        let present = outage.borrow_and_update().clone();
        let state = *agent.state.borrow_and_update();
        let mut again = None;
        if state.is_serving {
            match reported.step(state.generation, present.as_ref(), Instant::now()) {
                Step::Nothing => {}
                Step::Wait(until) => again = Some(until),
                Step::Report(setting) => match agent.put_peer_source(setting).await {
                    Ok(()) => reported = Reported::new(state.generation, present),
                    Err(error) => {
                        tracing::debug!(%error, "the agent was not told about the API server");
                        again = Some(Instant::now() + RETRY);
                    }
                },
            }
        }
        let ended = tokio::select! {
            result = outage.changed() => result,
            result = agent.state.changed() => result,
            () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => Ok(()),
        };
        if ended.is_err() {
            return;
        }
    }
}

/// What the agent was told.
#[derive(Debug, Default)]
struct Reported {
    generation: u64,
    outage: Option<ApiOutage>,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Wait(Instant),
    Report(PeerSourceSetting),
}

impl Reported {
    fn new(generation: u64, outage: Option<ApiOutage>) -> Self {
        Self { generation, outage }
    }

    fn step(&self, generation: u64, present: Option<&ApiOutage>, now: Instant) -> Step {
        let known = if self.generation == generation {
            self.outage.as_ref()
        } else {
            None
        };
        match present {
            _ if known == present => Step::Nothing,
            Some(outage) if now < outage.began + GRACE => Step::Wait(outage.began + GRACE),
            Some(outage) => Step::Report(PeerSourceSetting {
                program: PROGRAM.to_owned(),
                error: Some(shortened(&outage.error).to_owned()),
                seconds: now.duration_since(outage.began).as_secs(),
            }),
            None => Step::Report(PeerSourceSetting {
                program: PROGRAM.to_owned(),
                ..PeerSourceSetting::default()
            }),
        }
    }
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

    fn outage(began: Instant) -> ApiOutage {
        ApiOutage {
            began,
            error: "nodes: refused".to_owned(),
        }
    }

    #[test]
    fn an_outage_is_reported_when_it_lasts_and_so_is_its_end() {
        let began = Instant::now();
        let outage = outage(began);
        let reported = Reported::new(1, None);
        let step = |seconds| reported.step(1, Some(&outage), began + Duration::from_secs(seconds));
        assert_eq!(step(9), Step::Wait(began + GRACE));
        let Step::Report(setting) = step(25) else {
            panic!("{:?}", step(25));
        };
        assert_eq!(setting.error.as_deref(), Some("nodes: refused"));
        assert_eq!(setting.seconds, 25);

        let reported = Reported::new(1, Some(outage.clone()));
        let later = began + Duration::from_mins(10);
        assert_eq!(reported.step(1, Some(&outage), later), Step::Nothing);
        let Step::Report(setting) = reported.step(1, None, later) else {
            panic!("the end is not reported");
        };
        assert_eq!(setting.error, None);
    }

    #[test]
    fn an_agent_that_has_started_is_told_again() {
        let began = Instant::now();
        let outage = outage(began);
        let reported = Reported::new(1, Some(outage.clone()));
        let later = began + Duration::from_mins(1);
        assert!(matches!(
            reported.step(2, Some(&outage), later),
            Step::Report(_)
        ));
        assert_eq!(
            reported.step(2, None, later),
            Step::Nothing,
            "it knows of no outage"
        );
    }

    #[test]
    fn a_long_error_is_cut_at_a_character() {
        assert_eq!(shortened("short"), "short");
        let long = "ä".repeat(MAX_ERROR);
        assert_eq!(shortened(&long).len(), MAX_ERROR);
        assert_eq!(shortened(&format!("x{long}")).len(), MAX_ERROR - 1);
    }
}
