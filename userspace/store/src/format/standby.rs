//! Stored form of the ports for which an interface stands by.

use model::StandbyPort;
use serde::{Deserialize, Serialize};

use super::StoredPort;

#[derive(Serialize, Deserialize)]
pub(super) struct StoredStandby {
    port: StoredPort,
    ipv4: bool,
}

impl From<&StandbyPort> for StoredStandby {
    fn from(standby: &StandbyPort) -> Self {
        Self {
            port: (&standby.mapping).into(),
            ipv4: standby.ipv4,
        }
    }
}

impl From<StoredStandby> for StandbyPort {
    fn from(stored: StoredStandby) -> Self {
        Self {
            mapping: stored.port.into(),
            ipv4: stored.ipv4,
        }
    }
}
