//! The operator's lists of what networks of CNI configurations may use: kept, and applied to ADD
//! and STATUS. The planner decides.

use std::sync::PoisonError;

use cni::Header;
use engine::EngineError;
use model::Network;
use planner::DeclaredNetworks;

use crate::app::App;
use crate::http::failure::Failure;

impl App {
    /// Sets the bridges and subnets that networks of CNI configurations may use.
    pub(crate) fn set_declared_networks(&self, declared: DeclaredNetworks) {
        let current = self.declared_networks.write();
        *current.unwrap_or_else(PoisonError::into_inner) = declared;
    }

    /// Fails if a configuration declares a network that the operator does not allow.
    pub(crate) fn check_declared(&self, header: &Header, network: &Network) -> Result<(), Failure> {
        if !header.declares_network {
            return Ok(());
        }
        let lists = self.declared_networks.read();
        lists
            .unwrap_or_else(PoisonError::into_inner)
            .check(network)
            .map_err(|refusal| Failure::from(EngineError::from(refusal)))
    }
}
