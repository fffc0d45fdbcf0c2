//! The operator's lists of what networks of CNI configurations may use, applied to ADD and STATUS.
//! The planner decides.

use cni::Header;
use engine::EngineError;
use model::Network;

use crate::app::App;
use crate::http::failure::Failure;

impl App {
    /// Fails if a configuration declares a network that the operator does not allow.
    pub(crate) fn check_declared(&self, header: &Header, network: &Network) -> Result<(), Failure> {
        if !header.declares_network {
            return Ok(());
        }
        let config = self.config.get();
        (config.declared.check(network))
            .map_err(|refusal| Failure::from(EngineError::from(refusal)))
    }
}
