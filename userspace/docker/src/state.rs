//! What must outlast the agent and the boot, as JSON: dockerd creates a network once, and expects
//! it after each boot.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::protocol::Id;
use crate::{NetworkSpec, Pools, Refused};

/// Version of the format.
const VERSION: u32 = 1;

/// Networks and pools of Docker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// Networks, by the text of their IDs.
    networks: BTreeMap<String, NetworkSpec>,
    /// Pools of the IPAM driver.
    pub pools: Pools,
}

impl Default for State {
    fn default() -> Self {
        Self {
            version: VERSION,
            networks: BTreeMap::new(),
            pools: Pools::default(),
        }
    }
}

impl State {
    /// Parses the state that [`State::to_json`] has written.
    pub fn parse(text: &str) -> Result<Self, String> {
        let state: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if state.version == VERSION {
            Ok(state)
        } else {
            let version = state.version;
            Err(format!(
                "version {version} is not {VERSION}: a later agent has written it"
            ))
        }
    }

    /// Returns the state as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Returns the networks.
    pub fn networks(&self) -> impl Iterator<Item = &NetworkSpec> {
        self.networks.values()
    }

    /// Returns a network.
    pub fn network(&self, id: &Id) -> Result<&NetworkSpec, Refused> {
        let found = self.networks.get(id.as_str());
        found.ok_or_else(|| Refused(format!("there is no network {id} of the driver viaduct")))
    }

    /// Adds a network. The same one again is success.
    pub fn add(&mut self, spec: NetworkSpec) -> Result<(), Refused> {
        match self.networks.get(spec.id.as_str()) {
            Some(present) if *present != spec => {
                return Err(Refused(format!("there is another network {}", spec.id)));
            }
            Some(_) => {}
            None => {
                self.pools.bind(&spec.id, spec.prefixes());
                self.networks.insert(spec.id.as_str().to_owned(), spec);
            }
        }
        Ok(())
    }

    /// Removes a network. An unknown one is success.
    pub fn remove(&mut self, id: &Id) {
        self.networks.remove(id.as_str());
        self.pools.unbind(id);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pools::Request;
    use crate::protocol::RequestPool;

    fn spec(pool: &str) -> NetworkSpec {
        let request = json!({"NetworkID": "0123456789abcdef", "IPv4Data": [{"Pool": pool}]});
        NetworkSpec::read(&serde_json::from_value(request).unwrap()).unwrap()
    }

    #[test]
    fn networks_and_pools_of_docker_are_the_same_after_they_were_stored() {
        let mut state = State::default();
        let pool = RequestPool {
            pool: "10.7.0.0/24".to_owned(),
            ..RequestPool::default()
        };
        state.pools.request(&pool, &Request::default()).unwrap();
        state.add(spec("10.7.0.0/24")).unwrap();
        assert_eq!(State::parse(&state.to_json()), Ok(state.clone()));
        // The pool is the network's: no other network gets it.
        state.pools.request(&pool, &Request::default()).unwrap_err();
        state.remove(&spec("10.7.0.0/24").id);
        state.pools.request(&pool, &Request::default()).unwrap();
        assert_eq!(state.networks().count(), 0);
    }

    #[test]
    fn a_network_of_docker_can_be_created_again_but_not_changed() {
        let mut state = State::default();
        state.add(spec("10.7.0.0/24")).unwrap();
        state.add(spec("10.7.0.0/24")).unwrap();
        state.add(spec("10.8.0.0/24")).unwrap_err();
        assert_eq!(state.networks().count(), 1);
    }

    #[test]
    fn damaged_and_later_states_of_docker_are_refused() {
        State::parse("{").unwrap_err();
        let later = State::default()
            .to_json()
            .replace("\"version\": 1", "\"version\": 2");
        assert!(State::parse(&later).unwrap_err().contains("later agent"));
    }
}
