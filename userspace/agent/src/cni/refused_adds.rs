//! ADDs whose result the version of the protocol cannot express, and the DELs after them (decision
//! 123).
//!
//! In versions before 0.3.0 the reference's host-local refuses a configuration with several
//! addresses per family at every DEL too. A runtime that repeats the DEL until it succeeds could
//! never remove its sandbox. So the agent returns the refusal at the first DEL and forgets it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use cni::{Error, InexpressibleResult, Version};
use model::{AttachmentKey, Intent};

use crate::app::App;

/// Refusals that are remembered at most. Runtimes send the DEL of a failed ADD within seconds.
const CAPACITY: usize = 256;

/// Attachments whose last ADD was refused for its result alone, and had no DEL since; the oldest
/// first. They are not stored: after a restart of the agent their DELs succeed.
#[derive(Debug, Default)]
pub(crate) struct RefusedAdds(Mutex<VecDeque<(AttachmentKey, InexpressibleResult)>>);

impl RefusedAdds {
    /// Remembers a refusal until the next ADD or DEL of the attachment.
    fn remember(&self, key: AttachmentKey, reason: InexpressibleResult) {
        let mut refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() == CAPACITY {
            refused.pop_front();
        }
        refused.push_back((key, reason));
    }

    /// Forgets the refusal of an attachment, and returns it.
    pub(crate) fn take(&self, key: &AttachmentKey) -> Option<InexpressibleResult> {
        let mut refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = refused.iter().position(|(other, _)| other == key)?;
        refused.remove(index).map(|(_, reason)| reason)
    }
}

impl App {
    /// Refuses an ADD whose result the version cannot express, and makes the network's bridge, as
    /// the reference plugins do. Makes nothing if the ADD would fail for another reason too.
    pub(crate) async fn refuse_inexpressible(
        &self,
        intent: &Intent,
        version: Version,
    ) -> Result<(), Error> {
        self.refused_adds.take(&intent.key);
        let Some(reason) = InexpressibleResult::of(intent, version) else {
            return Ok(());
        };
        let key = &intent.key;
        match (self.handle.make_bridge(intent.clone()).await, reason) {
            (Ok(()), InexpressibleResult::SeveralPerFamily(_)) => {
                self.refused_adds.remember(key.clone(), reason);
            }
            (Ok(()), InexpressibleResult::NoAddress) => {}
            (Err(error), _) => {
                tracing::debug!(%key, %error, "no bridge was made for an ADD that fails anyway");
            }
        }
        Err(reason.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(container: &str) -> AttachmentKey {
        AttachmentKey {
            network: "own".parse().unwrap(),
            container_id: container.parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        }
    }

    #[test]
    fn a_refusal_is_returned_once_and_the_oldest_are_forgotten() {
        let refused = RefusedAdds::default();
        let reason = InexpressibleResult::SeveralPerFamily(Version::V0_2_0);
        for container in 0..=CAPACITY {
            refused.remember(key(&format!("c{container}")), reason);
        }
        assert_eq!(refused.take(&key("c0")), None);
        assert_eq!(refused.take(&key("c1")), Some(reason));
        assert_eq!(refused.take(&key("c1")), None);
    }
}
